"""Worker processes end with the process that made them, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Called in a fresh child: it is killed when its parent dies, even by a signal that nothing can catch.

    A forked child holds copies of its parent's pipes and locks, so it would neither see the pipe end nor let go of
    the lock. Elsewhere than on Linux children are spawned and hold no copies.

    Args:
        parent: The parent's process id.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)
