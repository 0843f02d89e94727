"""Baselines for which users hand over what they interacted with: no federation, and no privacy.

In the first round that a user takes part in it sends one bit an item (`items / 8` bytes); later ones ask for nothing
more. The server learns from the bits it has. Shapes: ``c`` clients, ``m`` items, ``d`` numbers an item.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.task import Task
from fedfi.numerics.counter import Ints
from fedfi.recsys.recipe import own_ratings, ratings_of
from fedfi.recsys.recommender import Recommender


@dataclass(frozen=True)
class CentralState:
    """What the server has.

    Attributes:
        clients: All clients, in order.
        known: Which of them have sent their bits, bool ``[c]``.
        seen: Their interactions, bool ``[c, m]``.
        model: What was learned.
        progress: What the optimizer keeps.
        settings: What learning needs of the task.
    """

    clients: list[ClientId]
    known: Tensor
    seen: Tensor
    model: Tree = field(default_factory=dict)
    progress: Tree = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)


@validated(frozen=True, kw_only=True, config=CONFIG)
class Central(Recommender[CentralState]):
    """Collects interactions and learns from all of them on the server."""

    @abstractmethod
    def begin(self, task: Task, rng: torch.Generator) -> tuple[Tree, dict[str, float]]:
        """The model before the first round, and what learning needs of the task."""

    @abstractmethod
    def learn(self, state: CentralState, rng: torch.Generator) -> tuple[Tree, Tree, Metrics]:
        """The model and the optimizer's progress after one more round on the interactions in `state`."""

    @abstractmethod
    def for_client(self, state: CentralState, row: int) -> Tree:
        """What the client of a row needs to score items; tensors that all need are the same objects for all."""

    @abstractmethod
    def score(self, sent: Sequence[Tree], own: Sequence[Tensor]) -> Tensor:
        """Logits ``[n, m]`` of clients that got `sent`, whose training items are `own`."""

    def init(self, task: Task, rng: torch.Generator) -> CentralState:
        """Nobody is known yet."""
        data = ratings_of(task)
        model, settings = self.begin(task, rng)
        shape = (len(data.users), len(data.items))
        return CentralState(
            list(data.users), torch.zeros(shape[0], dtype=torch.bool), torch.zeros(shape, dtype=torch.bool), model,
            settings=settings,
        )  # fmt: skip

    def configure(
        self, state: CentralState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Asks clients that are not known for their interactions."""
        known = dict(zip(state.clients, state.known.tolist(), strict=True))
        packets = {send: Packet(scalars={"send": send}) for send in (False, True)}
        return ((client, packets[not known[client]]) for client in self.sample(clients, rng))

    def reply_layout(self, state: CentralState, packet: Packet) -> Layout:
        """A bit an item, or nothing."""
        return Layout(blobs={"seen": -(-state.seen.shape[1] // 8)}) if packet.scalars["send"] else Layout()

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Sends the interactions if asked."""
        own = own_ratings(client)
        return bits(own.train, own.interactions.items) if packet.scalars["send"] else _NOTHING

    def cohort_update(self, cohort: Cohort) -> Iterable[Packet]:
        """The same for many clients."""
        data = ratings_of(cohort.task)
        for row, packet in zip(cohort.rows.tolist(), cohort.packets, strict=True):
            yield bits(data.train[row], len(data.items)) if packet.scalars["send"] else _NOTHING

    def aggregate(
        self, state: CentralState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[CentralState, Metrics]:
        """Takes in new interactions and learns a round."""
        row = {client: i for i, client in enumerate(state.clients)}
        known, seen = state.known.clone(), state.seen.clone()
        for reply in replies:
            if reply.sent.scalars["send"]:
                raw = np.frombuffer(reply.packet.blobs["seen"], dtype=np.uint8)
                unpacked = np.unpackbits(raw, count=seen.shape[1]).astype(bool)
                seen[row[reply.client]] = torch.from_numpy(unpacked)
                known[row[reply.client]] = True
        now = CentralState(state.clients, known, seen, state.model, state.progress, state.settings)
        model, progress, metrics = self.learn(now, rng)
        return CentralState(state.clients, known, seen, model, progress, state.settings), metrics

    def global_model(self, state: CentralState) -> Tree:
        """What was learned."""
        return state.model

    def configure_evaluation(
        self, state: CentralState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends each client what it needs."""
        row = {client: i for i, client in enumerate(state.clients)}
        return ((client, Packet(self.for_client(state, row[client]))) for client in clients)

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """By what was sent, and the client's own items."""
        return self.score([dict(packet.tensors)], [torch.from_numpy(own_ratings(client).train)])[0]

    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """The same for many clients."""
        train = ratings_of(cohort.task).train
        own = [torch.from_numpy(train[row]) for row in cohort.rows.tolist()]
        return self.score([dict(p.tensors) for p in cohort.packets], own)


_NOTHING = Packet()


def bits(items: Ints, count: int) -> Packet:
    """A set of items as one bit each."""
    seen = np.zeros(count, dtype=np.uint8)
    seen[items] = 1
    return Packet(blobs={"seen": np.packbits(seen).tobytes()})
