"""The command `fedfi`."""

from fedfi.cli.exits import main

__all__ = ["main"]
