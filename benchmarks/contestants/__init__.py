"""Five ways to do the same federated averaging, each in a process of its own: see `benchmarks.engine`."""
