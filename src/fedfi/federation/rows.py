"""A table of long rows on disk, for what a server keeps of each client that ever took part.

Rows are never overwritten in place: a new version goes to a free slot, so the rows that a checkpoint refers to
stay as they were until that checkpoint is dropped. Reads and writes are ordinary file operations, not a memory
map, so the table does not count as resident memory.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedfi.errors import InputError

Storage = Literal["float32", "bfloat16"]
_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _File:
    """The file of a store and all its forks, and the slots that kept checkpoints refer to."""

    def __init__(self) -> None:
        self.held: list[frozenset[int]] = []
        self.pinned: frozenset[int] = frozenset()
        self._fd = -1

    def open(self, path: Path | None = None, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        if path is None:
            descriptor, name = tempfile.mkstemp(prefix="fedfi-rows-")
            Path(name).unlink()  # gone with the process, however it ends
        else:
            descriptor = os.open(path, flags, 0o644)
        self._fd = descriptor
        weakref.finalize(self, os.close, descriptor)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def fd(self) -> int:
        if not self.is_open:
            self.open()
        return self._fd


class RowStore:
    """Rows of `width` numbers by client id, kept in one file: a temporary one, until `attach` gives another.

    Args:
        width: Numbers a row.
        storage: How they are stored; ``"bfloat16"`` halves the disk, keeps float32's range, and rounds to a
            relative 2^-8.
    """

    def __init__(self, width: int, storage: Storage = "bfloat16") -> None:
        if storage not in _DTYPES:
            raise InputError(f"row storage {storage!r} is unknown (choose from {', '.join(sorted(_DTYPES))})")
        self.width, self.storage = width, storage
        self._index: dict[str, tuple[int, int]] = {}  # client -> (slot, checksum)
        self._before: frozenset[int] = frozenset()  # slots of the store that this one was forked from
        self._file = _File()

    def attach(self, directory: Path, name: str, *, read_only: bool = False) -> None:
        """Keeps the rows in `directory` from now on, or reads them there; must come before the first write."""
        if self._file.is_open:
            raise RuntimeError("a row store can only be attached before its first use")
        path = directory / f"{name}.rows"
        if not read_only:
            self._file.open(path)
        elif path.exists():  # else there are no rows yet
            self._file.open(path, os.O_RDONLY)

    def fork(self) -> RowStore:
        """A store that begins with the same rows; what is written to it leaves this one as it is."""
        child = RowStore(self.width, self.storage)
        child._index, child._before, child._file = dict(self._index), self._slots(), self._file
        return child

    @property
    def row_nbytes(self) -> int:
        """Bytes of a stored row."""
        return self.width * _DTYPES[self.storage].itemsize

    def __contains__(self, client: str) -> bool:
        return client in self._index

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def read(self, client: str) -> Tensor:
        """A copy of a row `[width]` as float32; `KeyError` if the client has none."""
        slot, checksum = self._index[client]
        raw = bytearray(self.row_nbytes)
        count = os.preadv(self._file.fd, [raw], slot * self.row_nbytes)
        if count != len(raw) or zlib.crc32(raw) != checksum:
            raise InputError(f"the stored row of client {client!r} is damaged")
        return torch.frombuffer(raw, dtype=_DTYPES[self.storage]).float()

    def write(self, client: str, row: Tensor) -> None:
        """Replaces a client's row `[width]`."""
        if row.shape != (self.width,):
            raise InputError(f"a row of shape {tuple(row.shape)} was given, the table holds rows of ({self.width},)")
        raw = row.detach().cpu().to(_DTYPES[self.storage]).contiguous().view(torch.uint8).numpy().tobytes()
        slot = self._free_slot()
        if os.pwrite(self._file.fd, raw, slot * self.row_nbytes) != self.row_nbytes:
            raise OSError(errno.ENOSPC, "no space left for a row of the server's table")
        self._index[client] = (slot, zlib.crc32(raw))

    def flush(self) -> None:
        """Forces all rows to disk."""
        os.fdatasync(self._file.fd)

    def hold(self, keep: int) -> None:
        """Called when a checkpoint refers to the present rows: keeps them and those of the `keep - 1` before."""
        self._file.held = [*self._file.held, self._slots()][-keep:]

    def pin(self, rows: RowStore) -> None:
        """Keeps the present rows of a store of the same file until others are pinned, whatever `hold` drops."""
        self._file.pinned = rows._slots()

    def describe(self) -> dict[str, Any]:
        """What a checkpoint stores of the table: everything but the rows."""
        return {"width": self.width, "storage": self.storage, "index": {k: list(v) for k, v in self._index.items()}}

    def restore(self, described: Mapping[str, Any], older: Sequence[Mapping[str, Any]] = ()) -> None:
        """Goes back to the rows that `describe` told of, after checking each of them.

        Args:
            described: Of the checkpoint that is restored.
            older: Of the kept checkpoints before it, oldest first; their rows are left alone.

        Raises:
            InputError: If a row is damaged or the table has another shape.
        """
        if described["width"] != self.width or described["storage"] != self.storage:
            raise InputError(
                f"the stored table has rows of {described['width']} {described['storage']},"
                f" expected {self.width} {self.storage}"
            )
        self._index = {k: (int(v[0]), int(v[1])) for k, v in described["index"].items()}
        for client in self._index:
            self.read(client)
        self._file.held = [frozenset(int(v[0]) for v in d["index"].values()) for d in older] + [self._slots()]

    def _slots(self) -> frozenset[int]:
        return frozenset(slot for slot, _ in self._index.values())

    def _free_slot(self) -> int:
        used = self._slots().union(self._before, self._file.pinned, *self._file.held)
        slot = 0
        while slot in used:
            slot += 1
        return slot


def attach_all(stores: Iterable[RowStore], directory: Path, *, read_only: bool = False) -> None:
    """Gives each store a file of its own in `directory`, or reads the one that is there."""
    if not read_only:
        directory.mkdir(parents=True, exist_ok=True)
    for number, store in enumerate(stores):
        store.attach(directory, str(number), read_only=read_only)
