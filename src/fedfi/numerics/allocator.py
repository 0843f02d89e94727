"""What the C library does with freed memory, where it is glibc; elsewhere these do nothing.

glibc takes blocks beyond a threshold from the system one by one and gives each back when it is freed; smaller ones come
from a heap that it keeps. The threshold follows the largest block that was freed, up to 32 MB.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

import torch

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE = 1 << 20


@cache
def keep_freed_memory() -> None:
    """Makes it keep what a step frees for the next step, once in a process.

    Taking a block again page by page is a fifth of a step's time in a small network. One block of 31 MB, of which no
    page is ever touched, settles the threshold.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


@cache
def return_freed_memory() -> None:
    """Makes it give back every freed block of 1 MB or more, once in a process, for one that moves large messages.

    Else the holes between blocks that are still in use stay with the process, as much as a message again. The threshold
    no longer moves, so `keep_freed_memory` has no effect after this.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
