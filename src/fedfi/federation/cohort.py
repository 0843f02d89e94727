"""Many clients of one round at once, where one process holds them all: their packets and columns of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedfi.federation.packet import Packet
from fedfi.federation.rng import word_key
from fedfi.federation.task import Task
from fedfi.numerics.counter import Words, words


class Columns(Protocol):
    """The memory of all clients, one tensor a name."""

    def column(self, name: str) -> Tensor | None:
        """The column `[clients, ...]` itself, or None if no client ever had the name."""
        ...

    def create(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The column `[clients, *shape]`, made of zeros and nobody's where it is new."""
        ...

    def present(self, name: str) -> Tensor:
        """Which clients have the name, bool `[clients]`, the table's own; false for all where it is new."""
        ...


@dataclass(frozen=True)
class Cohort:
    """Some clients in one round.

    Attributes:
        ids: Who they are.
        packets: What each of them was sent; clients that were sent the same share the object.
        rows: Their rows in the columns, and in the task's data, int64 `[n]`.
        memory: What all clients remember, as columns. Writing to the cohort's rows is how a cohort remembers; other
            rows belong to others.
        task: The task.
        round: The current round, from 0.
        seed: The run's seed.
        device: Where to compute.
    """

    ids: Sequence[str]
    packets: Sequence[Packet]
    rows: Tensor
    memory: Columns
    task: Task
    round: int
    seed: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __len__(self) -> int:
        return len(self.ids)

    def keys(self, purpose: str) -> Words:
        """The keys of each client's draws in this round for a purpose `[n]`; see `client_key`."""
        own = np.array([_own_key(self.seed, i) for i in self.ids], dtype=np.uint64)
        return words(own, np.full(len(own), _place(self.seed, self.round, purpose)))

    def has(self, name: str) -> Tensor:
        """Which of the cohort have a name in memory, bool `[n]`."""
        if self.memory.column(name) is None:
            return torch.zeros(len(self), dtype=torch.bool)
        return self.memory.present(name)[self.rows]

    def read(self, name: str, default: Tensor) -> Tensor:
        """A copy of what the cohort remembers `[n, ...]`, `default` `[...]` for those who do not."""
        column, has = self.memory.column(name), self.has(name)
        if column is None:
            return default.expand(len(self), *default.shape).clone()
        own = column[self.rows]
        if not bool(has.all()):
            own[~has] = default
        return own

    def write(self, name: str, values: Tensor) -> None:
        """Remembers `values` `[n, ...]`."""
        self.memory.create(name, values.shape[1:], values.dtype)[self.rows] = values
        self.memory.present(name)[self.rows] = True


def client_key(seed: int, round: int, client: str, purpose: str) -> int:
    """The key of a client's counter-based draws, 64 bits; the same alone and in a cohort.

    It is a word of a stream of the client's own, at a place that round and purpose say: so the keys of a whole cohort
    are one operation.
    """
    return int(words(np.array([_own_key(seed, client)], dtype=np.uint64), np.array([_place(seed, round, purpose)]))[0])


@lru_cache(maxsize=1 << 17)
def _own_key(seed: int, client: str) -> int:
    return word_key(seed, "client", client)


def _place(seed: int, round: int, purpose: str) -> int:
    return word_key(seed, "clients", round, purpose) >> 1  # a place is a signed number
