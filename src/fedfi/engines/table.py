"""Client memory in one process: one tensor `[clients, ...]` a name; a client's memory is a row of views."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.packet import Tree
from fedfi.room import check_room


class MemoryTable:
    """Rows by client and name; a row of a name has the same shape and dtype for all clients."""

    def __init__(self, clients: Sequence[str]) -> None:
        self._position = {c: i for i, c in enumerate(clients)}
        self._columns: Tree = {}
        self._present: dict[str, Tensor] = {}
        self._lock = threading.Lock()  # cohorts may work in threads

    def row(self, client: str) -> Tree:
        """Views of what a client has; nothing for a client that is not known."""
        i = self._position.get(client)
        if i is None:
            return {}
        return {n: t[i] for n, t in self._columns.items() if bool(self._present[n][i])}

    def commit(self, client: str, changed: Mapping[str, Tensor], removed: Iterable[str] = ()) -> None:
        """Takes over what a client's work changed.

        Raises:
            InputError: If a shape or dtype is not that of the column, or memory is too small for a new one.
        """
        for name, value in changed.items():
            column = self._columns.get(name)
            if column is not None and (column.shape[1:] != value.shape or column.dtype != value.dtype):
                raise InputError(
                    f"client {client!r}: memory {name!r} has shape {tuple(value.shape)} of {value.dtype},"
                    f" other clients' has {tuple(column.shape[1:])} of {column.dtype}"
                )
        i = self._position[client]
        for name, value in changed.items():
            if name not in self._columns:
                self._check_room(name, value.shape, value.element_size())
                self._columns[name] = value.new_zeros((len(self._position), *value.shape))
                self._present[name] = torch.zeros(len(self._position), dtype=torch.bool)
            self._columns[name][i] = value
            self._present[name][i] = True
        for name in removed:
            if name in self._present:
                self._present[name][i] = False

    def rows(self, clients: Sequence[str]) -> Tensor:
        """The rows of clients, int64 `[n]`."""
        try:
            return torch.tensor([self._position[c] for c in clients], dtype=torch.int64)
        except KeyError as error:
            raise InputError(f"there is no client {error.args[0]!r}") from None

    def column(self, name: str) -> Tensor | None:
        """The column `[clients, ...]` itself, or None where no client ever had the name."""
        return self._columns.get(name)

    def create(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The column `[clients, *shape]`; made of zeros, present for nobody, where it is new.

        Raises:
            InputError: If it is there with another shape or dtype, or memory is too small.
        """
        with self._lock:
            if name not in self._columns:
                self._check_room(name, shape, dtype.itemsize)
                self._columns[name] = torch.zeros((len(self._position), *shape), dtype=dtype)
                self._present[name] = torch.zeros(len(self._position), dtype=torch.bool)
        column = self._columns[name]
        if column.shape[1:] != torch.Size(shape) or column.dtype != dtype:
            raise InputError(
                f"memory {name!r} has shape {tuple(column.shape[1:])} of {column.dtype}, not {tuple(shape)} of {dtype}"
            )
        return column

    def _check_room(self, name: str, shape: Sequence[int], itemsize: int) -> None:
        """Refuses a column that memory is too small for; zeros take none until they are written."""
        count = len(self._position)
        check_room(f"{name!r} {list(shape)} of each of {count} clients", count * math.prod(shape) * itemsize)

    def present(self, name: str) -> Tensor:
        """Which clients have the name, bool `[clients]`, the table's own."""
        if name not in self._present:
            return torch.zeros(len(self._position), dtype=torch.bool)
        return self._present[name]

    def describe(self) -> dict[str, Any]:
        """The table as a checkpoint stores it."""
        return {"columns": dict(self._columns), "present": dict(self._present)}

    def restore(self, described: Mapping[str, Any]) -> None:
        """Goes back to what `describe` told."""
        self._columns = dict(described.get("columns", {}))
        self._present = dict(described.get("present", {}))
