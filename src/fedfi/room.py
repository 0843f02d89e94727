"""How much memory there is left, and what would need more: told before the system ends the process for it."""

from __future__ import annotations

from pathlib import Path

from fedfi.errors import InputError

_MEMINFO = Path("/proc/meminfo")
_GIGABYTE = 10**9


def free_memory() -> int | None:
    """Bytes that can be taken on this machine, swap included; None where the system does not tell (it is Linux's)."""
    try:
        lines = (line.split() for line in _MEMINFO.read_text().splitlines())
        found = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
        return found["MemAvailable:"] + found.get("SwapFree:", 0)
    except (OSError, LookupError, ValueError):
        return None


def check_room(what: str, needed: int) -> None:
    """Checks that memory is not too small for something that is about to be made.

    Args:
        what: What it is, such as ``"tables of 200 users with 300 items of 32 numbers each"``.
        needed: Its bytes.

    Raises:
        InputError: If there is less, saying how much is needed and how much there is.
    """
    free = free_memory()
    if free is not None and needed > free:
        raise InputError(
            f"needs more memory than there is: {what} are {needed / _GIGABYTE:,.1f} GB, and"
            f" {free / _GIGABYTE:,.1f} GB are free"
        )
