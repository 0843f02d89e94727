"""A growing piece of memory that two processes share, through which packets pass without being copied or pickled."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

from fedfi.federation.packet import Packet, decode

_FIRST = 1 << 20


class Arena:
    """One side of the shared memory: the maker calls `Arena()`, the other side `Arena(path)`.

    One packet at a time; reading gives views that are valid until the next write. The file's name is gone as soon
    as both sides have it open, so a killed process leaves nothing behind.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            shared = Path("/dev/shm")
            folder = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
            self._fd, name = tempfile.mkstemp(prefix="fedfi-", dir=folder)
            self.path = Path(name)
            os.ftruncate(self._fd, _FIRST)
        else:
            self._fd, self.path = os.open(path, os.O_RDWR), path
        self._map = mmap.mmap(self._fd, 0)

    def forget_name(self) -> None:
        """Removes the file's name; both sides keep what they have open."""
        self.path.unlink(missing_ok=True)

    def write(self, packet: Packet) -> int:
        """Puts a packet at the start of the memory and returns its length in bytes."""
        length = packet.nbytes
        if length > len(self._map):
            os.ftruncate(self._fd, length + length // 4)
            self._map = mmap.mmap(self._fd, 0)  # the old map goes when its last view goes
        packet.encode_into(memoryview(self._map))
        return length

    def read(self, length: int) -> Packet:
        """The packet of `length` bytes that the other side wrote; its tensors are views of the shared memory."""
        if length > len(self._map):
            self._map = mmap.mmap(self._fd, 0)
        return decode(memoryview(self._map)[:length])

    def close(self) -> None:
        """Closes the file; views that are still held keep the memory alive."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.forget_name()
