"""What client code may see: one client's data, its memory, its device, and a workbench to train on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedfi.data.federated import ClientData
from fedfi.federation.packet import Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.federation.workbench import Benches, Workbench


class Memory(MutableMapping[str, Tensor]):
    """What a client remembers between rounds: named tensors, kept where the client lives.

    Reading gives the stored tensor, to be treated as read-only; assigning replaces it. Assignments reach the
    engine's table only when the client's work ends without an error, so a failure leaves no half-written memory.
    """

    def __init__(self, stored: Mapping[str, Tensor] | None = None) -> None:
        self._stored = dict(stored or {})
        self.changed: Tree = {}
        self.removed: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        if name in self.changed:
            return self.changed[name]
        if name in self.removed:
            raise KeyError(name)
        return self._stored[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.changed[name] = value.detach().clone()
        self.removed.discard(name)

    def __delitem__(self, name: str) -> None:
        self[name]
        self.changed.pop(name, None)
        self.removed.add(name)

    def __iter__(self) -> Iterator[str]:
        return iter([n for n in {**self._stored, **self.changed} if n not in self.removed])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Client:
    """One client in one round.

    Attributes:
        id: Who it is.
        data: Its own examples, `train` and `test`.
        memory: What it kept from earlier rounds.
        task: The model factory, the loss and the local training recipe.
        benches: Model instances to load and train, whole and smaller ones; nothing on them survives the call.
        round: The current round, from 0.
        seed: The run's seed.
        device: Where to compute.
        bench: Another workbench than that of the whole model.
    """

    id: str
    data: ClientData
    memory: Memory
    task: Task
    benches: Benches
    round: int
    seed: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    bench: Workbench | None = None

    @property
    def workbench(self) -> Workbench:
        """The model instance to work on: `bench`, or that of the whole model."""
        return self.benches.whole if self.bench is None else self.bench

    def on(self, bench: Workbench) -> Client:
        """The same client on another workbench."""
        return replace(self, bench=bench)

    def rng(self, purpose: str) -> torch.Generator:
        """The generator of this client, this round and this purpose; the same key gives the same draws."""
        return keyed_generator(self.seed, "client", self.round, self.id, purpose)
