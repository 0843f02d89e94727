"""What every method builds on: packets, clients, tasks, the loop, checkpoints."""
