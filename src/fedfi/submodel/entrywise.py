"""Submodels entry by entry: what is alike whatever parameters are ranked by.

Who gets a submodel, how the model and its levels are judged, and what a sum of submodels needs. What a client's
submodel is, how it is trained and what comes of the replies is a method's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics
from fedfi.federation.client import Client
from fedfi.federation.evaluation import evaluate_workbench
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.workbench import Benches, Workbench
from fedfi.submodel.capacities import held_levels, level_name
from fedfi.submodel.leveled import Leveled
from fedfi.submodel.masked import receive
from fedfi.submodel.model import Model


class _State(Protocol):
    """What the server's state holds of submodels entry by entry, among others."""

    @property
    def model(self) -> Model:
        """The global model."""
        ...

    @property
    def assignment(self) -> int:
        """Seed of who is at which level."""
        ...


State = TypeVar("State", bound=_State)


@validated(frozen=True, kw_only=True, config=CONFIG)
class Entrywise(Leveled[State], ABC):
    """A method whose clients hold single entries of the model, under a mask."""

    @abstractmethod
    def packet_of(self, state: State, client: ClientId, level: float, rng: torch.Generator) -> Packet:
        """The submodel of a client at a level, as `masked.send` packs it."""

    @abstractmethod
    def level(self, state: State, ratio: float) -> Packet:
        """The submodel of one level, whatever its share."""

    def configure(
        self, state: State, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Each sampled client gets the submodel of its capacity."""
        levels = self.dealt(state, round, clients)
        return ((c, self.packet_of(state, c, levels[c], rng)) for c in self.sample(clients, rng))

    def dealt(self, state: State, round: int | None, clients: Sequence[ClientId]) -> Mapping[ClientId, float]:
        """The level of each client."""
        return self.assigned(clients, state.assignment, round)

    def sums(self, round: int) -> bool:
        """In every round."""
        return True

    def least_clip(self) -> float:
        """That of the mask, whose ones say what is held."""
        return 1.0

    def global_model(self, state: State) -> Tree:
        """The full model."""
        return state.model.tree()

    def levels(self, state: State) -> Iterable[tuple[str, Packet]]:
        """The submodel of each level with a share of the clients."""
        return ((level_name(ratio), self.level(state, ratio)) for ratio in held_levels(self.capacities))

    def place(self, packet: Packet, benches: Benches) -> Workbench:
        """A submodel is the whole model, zero off its mask."""
        receive(packet, benches.whole)
        return benches.whole

    def configure_evaluation(
        self, state: State, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Every client gets the submodel that it would train."""
        levels = self.dealt(state, None, clients)
        return ((c, self.packet_of(state, c, levels[c], rng)) for c in clients)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges the client's submodel on its own test examples (matched local)."""
        receive(packet, client.workbench)
        return evaluate_workbench(client, renew=self.mixes_networks())
