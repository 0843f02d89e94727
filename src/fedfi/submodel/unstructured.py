"""Submodels entry by entry: what the methods share that rank parameters by a score of the server's own.

A method says what parameters are ranked by and how a client trains what it gets. Everything else is here: who is at
which level, what travels, the mean over holders, and the three evaluations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.federation.training import Trained
from fedfi.federation.workbench import fresh_workbench
from fedfi.submodel.capacities import level_name
from fedfi.submodel.entrywise import Entrywise
from fedfi.submodel.holders import HolderMean
from fedfi.submodel.maskable import check_maskable
from fedfi.submodel.masked import add_mean, receive, returned, send, sent_mask, summand, summand_layout
from fedfi.submodel.model import Model, unmarked
from fedfi.submodel.sizing import fractions


@dataclass(frozen=True)
class UnstructuredState:
    """The server's state.

    Attributes:
        model: The global model.
        fractions: The fraction of the selectable parameters at each level.
        assignment: Seed of who is at which level, and of what else is drawn once.
    """

    model: Model
    fractions: dict[float, float]
    assignment: int


@runtime_checkable
class ChecksLevels(Protocol):
    """A method that some levels of a model do not suit."""

    def check(self, state: UnstructuredState) -> None:
        """Raises `InputError` if a level does not suit."""
        ...


@validated(frozen=True, kw_only=True, config=CONFIG)
class Unstructured(Entrywise[UnstructuredState]):
    """Each sampled client trains the parameters that rank best; each entry is averaged over its holders."""

    server_learning_rate: Annotated[float, Field(gt=0, description="factor of the mean update")] = 1.0

    @abstractmethod
    def mask(self, model: Model, fraction: float, rng: torch.Generator) -> Tensor:
        """The entries `[pool]` that a client with this fraction of the parameters holds."""

    @abstractmethod
    def train(self, client: Client, mask: Tensor) -> tuple[Trained, Tree]:
        """Trains the submodel on the client's workbench; returns what `masked.train_masked` does."""

    def init(self, task: Task, rng: torch.Generator) -> UnstructuredState:
        """A freshly initialised model."""
        bench = fresh_workbench(task, rng)
        sizes = fractions(self.ratio, self.capacities, task, bench.module)
        check_maskable(bench, sizes.values())
        state = UnstructuredState(Model.of(bench), sizes, int(torch.randint(2**31, (), generator=rng)))
        if isinstance(self, ChecksLevels):
            self.check(state)
        return state

    def packet_of(self, state: UnstructuredState, client: ClientId, level: float, rng: torch.Generator) -> Packet:
        """The submodel of a level."""
        return send(state.model, self.mask(state.model, state.fractions[level], rng), {"ratio": level})

    def reply_layout(self, state: UnstructuredState, packet: Packet) -> Layout:
        """The update of what was sent, the loss and the number of examples."""
        base = returned(state.model, packet)
        return replace(base, scalars={"loss": float, "examples": int}, least={"examples": 1})

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains the submodel."""
        trained, back = self.train(client, receive(packet, client.workbench))
        return Packet(back, {"loss": trained.loss, "examples": trained.examples})

    def aggregate(
        self, state: UnstructuredState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[UnstructuredState, Metrics]:
        """The mean update of each entry over the clients that held it."""
        mean, loss = HolderMean(state.model), WeightedMean()
        for reply in replies:
            tensors, scalars = reply.packet.tensors, reply.packet.scalars
            mean.add(sent_mask(reply.sent, state.model), tensors["update"], unmarked(tensors))
            loss.add_scalar("loss", scalars["loss"], float(scalars["examples"]))
        return replace(state, model=mean.next(self.server_learning_rate)), {"train/loss": loss.scalar("loss")}

    def summand_layout(self, state: UnstructuredState) -> Layout:
        """See `masked.summand`."""
        return summand_layout(state.model)

    def least_bits(self) -> int:
        """Any will do."""
        return 0

    def summand(self, state: UnstructuredState, sent: Packet, reply: Packet) -> Packet:
        """The dense update, and what was held."""
        return Packet(summand(state.model, sent, reply))

    def replied(self, state: UnstructuredState, reply: Reply) -> UnstructuredState:
        """The state as it is: it keeps nothing of single clients."""
        return state

    def absorb(self, state: UnstructuredState, round: int, mean: Packet) -> UnstructuredState:
        """The mean update of each entry over its holders."""
        over = HolderMean(state.model)
        add_mean(over, state.model, mean.tensors)
        return replace(state, model=over.next(self.server_learning_rate))

    def level(self, state: UnstructuredState, ratio: float) -> Packet:
        """The submodel of one level, whatever its share."""
        rng = keyed_generator(state.assignment, "level", level_name(ratio))
        return send(state.model, self.mask(state.model, state.fractions[ratio], rng), {})
