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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedfi.errors import InputError

Storage = Literal["float32", "bfloat16"]
_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class RowStore:
    """Rows of `width` numbers by client id, kept in one file.

    Args:
        width: Numbers a row.
        storage: How they are stored; ``"bfloat16"`` halves the disk and keeps float32's range.
        directory: Where the file lies; a temporary place, gone with the process, until `attach` gives one.
    """

    def __init__(self, width: int, storage: Storage = "bfloat16") -> None:
        if storage not in _DTYPES:
            raise InputError(f"row storage {storage!r} is unknown (choose from {', '.join(sorted(_DTYPES))})")
        self.width, self.storage = width, storage
        self._index: dict[str, tuple[int, int]] = {}  # client -> (slot, checksum)
        self._held: list[frozenset[int]] = []  # slots that kept checkpoints refer to
        self._fd = -1

    def attach(self, directory: Path, name: str) -> None:
        """Keeps the rows in `directory` from now on; must come before the first write."""
        if self._fd >= 0:
            raise RuntimeError("a row store can only be attached before its first use")
        self._own(os.open(directory / f"{name}.rows", os.O_RDWR | os.O_CREAT, 0o644))

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
        count = os.preadv(self._opened(), [raw], slot * self.row_nbytes)
        if count != len(raw) or zlib.crc32(raw) != checksum:
            raise InputError(f"the stored row of client {client!r} is damaged")
        return torch.frombuffer(raw, dtype=_DTYPES[self.storage]).float()

    def write(self, client: str, row: Tensor) -> None:
        """Replaces a client's row `[width]`."""
        if row.shape != (self.width,):
            raise InputError(f"a row of shape {tuple(row.shape)} was given, the table holds rows of ({self.width},)")
        raw = row.detach().cpu().to(_DTYPES[self.storage]).contiguous().view(torch.uint8).numpy().tobytes()
        slot = self._free_slot()
        if os.pwrite(self._opened(), raw, slot * self.row_nbytes) != self.row_nbytes:
            raise OSError(errno.ENOSPC, "no space left for a row of the server's table")
        self._index[client] = (slot, zlib.crc32(raw))

    def hold(self, keep: int) -> None:
        """Called when a checkpoint refers to the present rows: keeps them and those of the `keep - 1` before."""
        os.fdatasync(self._opened())
        self._held = [*self._held, frozenset(s for s, _ in self._index.values())][-keep:]

    def describe(self) -> dict[str, Any]:
        """What a checkpoint stores of the table: everything but the rows."""
        return {
            "width": self.width,
            "storage": self.storage,
            "index": {k: list(v) for k, v in self._index.items()},
        }

    def restore(self, described: Mapping[str, Any]) -> None:
        """Goes back to the rows that `describe` told of, after checking each of them.

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
        self._held = [frozenset(s for s, _ in self._index.values())]

    def _free_slot(self) -> int:
        used: set[int] = {s for s, _ in self._index.values()}.union(*self._held)
        slot = 0
        while slot in used:
            slot += 1
        return slot

    def _opened(self) -> int:
        if self._fd < 0:
            descriptor, name = tempfile.mkstemp(prefix="fedfi-rows-")
            Path(name).unlink()  # gone with the process, however it ends
            self._own(descriptor)
        return self._fd

    def _own(self, descriptor: int) -> None:
        self._fd = descriptor
        weakref.finalize(self, os.close, descriptor)


def attach_all(stores: Iterable[RowStore], directory: Path) -> None:
    """Gives each store a file of its own in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, store in enumerate(stores):
        store.attach(directory, str(number))
