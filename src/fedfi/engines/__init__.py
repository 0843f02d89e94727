"""Where clients live: in this process or in workers of this machine."""
