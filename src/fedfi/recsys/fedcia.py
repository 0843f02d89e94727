"""FedCIA: Han et al., Federated Collaborative Information Aggregation for Privacy-Preserving Recommendation, SIGIR
2025, arXiv:2504.05563.

| paper | here |
|---|---|
| collaborative information of a client: similarity of its items, Q_u Q_u^T | reply `similarity` `[items, items]` |
| noise on it (Laplace) | `noise` |
| sum on the server | mean, `FedCIAState.similarity` |
| client model is drawn to the sum: steps on the distance of Q Q^T and S | `steps`, `align_rate` |
| local training in between | the task's `[train]` table, `interval` rounds |

The table itself never leaves a client, but items^2 numbers do: 17 MB a user and exchange for FilmTrust.

Deviations: local training is on cross-entropy with drawn negatives, as for the methods it is compared with, where the
authors' code takes Adam on other losses of pairs. A client that is away in the round after an exchange is not drawn to
that mean. The distance is the squared norm over ||S||, not the norm itself, whose steps do not
shrink near the goal and so never settle; they are computed from Q^T Q and S Q, without the matrix Q Q^T.
The number of steps is 10, not 100, for each costs items^2 * d multiplications for each user. The authors' evaluation
runs over a set, so the order of a recommendation list is lost there; here ranks are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.privacy.noise import Spread
from fedfi.recsys.backbones import BACKBONES
from fedfi.recsys.many import train_many
from fedfi.recsys.recipe import fresh_items, recipe_of
from fedfi.recsys.recommender import TABLES_NOT_PRIVATE, ItemRate, Recommender
from fedfi.recsys.single import train_one

_BACKBONE = BACKBONES["mf"]


@dataclass(frozen=True)
class FedCIAState:
    """What the server has.

    Attributes:
        items: The table that all begin with ``[m, d]``.
        similarity: The newest mean of similarities ``[m, m]``; before the first that of `items`.
        version: How many means there were.
        begun: Who has the first table, and so one of its own.
    """

    items: Tensor
    similarity: Tensor
    version: int
    begun: dict[ClientId, bool] = field(default_factory=dict)


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedCIA(Recommender[FedCIAState]):
    """Private matrix factorisation, whose item similarities are drawn to everyone's."""

    item_rate: ItemRate = 4.0
    interval: Annotated[int, Field(ge=1, description="rounds from one exchange of similarities to the next")] = 1
    steps: Annotated[int, Field(ge=0, description="steps towards the mean similarity")] = 10
    align_rate: Annotated[float, Field(gt=0, description="step size towards the mean similarity")] = 0.1
    noise: Annotated[float, Field(ge=0, description="scale of Laplace noise on what is sent")] = 0.0

    refused: ClassVar[Mapping[str, str]] = TABLES_NOT_PRIVATE

    def init(self, task: Task, rng: torch.Generator) -> FedCIAState:
        """A fresh table."""
        recipe_of(task, 0, self.item_rate)
        items = fresh_items(task, rng, len(task.data.clients)).clone()
        return FedCIAState(items, items @ items.T, 0)

    def configure(
        self, state: FedCIAState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the first table at first, the similarities in the round after an exchange."""
        upload = self.sums(round)
        align = state.version > 0 and round % self.interval == 0
        tensors = {"similarity": state.similarity} if align else {}
        scalars = {"upload": upload, "align": align}
        packets = {True: Packet(tensors, scalars), False: Packet({"items": state.items, **tensors}, scalars)}
        return ((client, packets[client in state.begun]) for client in self.sample(clients, rng))

    def reply_layout(self, state: FedCIAState, packet: Packet) -> Layout:
        """Similarities where they were asked for."""
        return Layout.like({"similarity": state.similarity}, loss=float) if packet.scalars["upload"] else Layout()

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Draws the table to the mean similarities, trains, and sends its own."""
        table = client.memory["items"] if "items" in client.memory else packet.tensors["items"]
        if packet.scalars["align"]:
            table = self.aligned(table, packet.tensors["similarity"])
        fresh = _BACKBONE.head(table.shape[1], keyed_generator(client.seed, "head"))
        head = {n: client.memory.get(n, t) for n, t in fresh.items()}
        recipe = recipe_of(client.task, client.round, self.item_rate)
        table, head, loss = train_one(client, _BACKBONE, table, head, recipe)
        client.memory["items"] = table
        for name, value in head.items():
            client.memory[name] = value
        if not packet.scalars["upload"]:
            return _EMPTY
        return self._reply(table, loss, client.rng("noise"))

    def cohort_update(self, cohort: Cohort) -> Iterable[Packet]:
        """The same for many clients."""
        had, like = cohort.has("items"), _like(cohort)
        tables = cohort.memory.create("items", like.shape, like.dtype)
        for row, known, packet in zip(cohort.rows.tolist(), had.tolist(), cohort.packets, strict=True):
            table = tables[row] if known else packet.tensors["items"]
            tables[row] = self.aligned(table, packet.tensors["similarity"]) if packet.scalars["align"] else table
        cohort.memory.present("items")[cohort.rows] = True
        fresh = _BACKBONE.head(like.shape[1], keyed_generator(cohort.seed, "head"))
        head = {n: cohort.read(n, t) for n, t in fresh.items()}
        recipe = recipe_of(cohort.task, cohort.round, self.item_rate)
        flat, base = tables.view(-1, like.shape[1]), cohort.rows * len(like)
        loss = train_many(cohort, _BACKBONE, flat, base, head, recipe)
        for name, value in head.items():
            cohort.write(name, value)
        upload = bool(cohort.packets[0].scalars["upload"])
        for client, row, value in zip(cohort.ids, cohort.rows.tolist(), loss.tolist(), strict=True):
            rng = keyed_generator(cohort.seed, "client", cohort.round, client, "noise")
            yield self._reply(tables[row], value, rng) if upload else _EMPTY

    def spread(self, clients: int) -> Spread:
        """That of Laplace noise whose uniform numbers are kept off their ends: -ln(2e-7) = 15.4 scales out at most."""
        return Spread(math.sqrt(2) * self.noise, 15.5 * self.noise)

    def aligned(self, table: Tensor, similarity: Tensor) -> Tensor:
        """A table ``[m, d]`` after steps on ||Q Q^T - S||^2 / ||S||, whose gradient is 4 (Q Q^T Q - S Q) / ||S||."""
        scale = 4.0 * self.align_rate / similarity.norm().clamp(min=1e-12)
        for _ in range(self.steps):
            table = table - scale * (table @ (table.T @ table) - similarity @ table)
        return table

    def _reply(self, table: Tensor, loss: float, rng: torch.Generator) -> Packet:
        similarity = table @ table.T
        if self.noise:
            uniform = torch.rand(similarity.shape, generator=rng) - 0.5
            similarity -= self.noise * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-7))
        return Packet({"similarity": similarity}, {"loss": loss})

    def aggregate(
        self, state: FedCIAState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedCIAState, Metrics]:
        """The plain mean of similarities."""
        mean, loss, count, begun = WeightedMean(), 0.0, 0, dict(state.begun)
        for reply in replies:
            begun[reply.client] = True
            if reply.sent.scalars["upload"]:
                mean.add(self.summand(state, reply.sent, reply.packet).tensors)
                loss, count = loss + float(reply.packet.scalars["loss"]), count + 1
        state = replace(state, begun=begun)
        if not count:
            return state, {}
        return self.absorb(state, round, Packet(mean.mean())), {"train/loss": loss / count}

    def sums(self, round: int) -> bool:
        """In rounds of exchange."""
        return (round + 1) % self.interval == 0

    def summand_layout(self, state: FedCIAState) -> Layout:
        """Similarities."""
        return Layout.like({"similarity": state.similarity})

    def summand(self, state: FedCIAState, sent: Packet, reply: Packet) -> Packet:
        """The reply but for its loss."""
        return Packet(reply.tensors)

    def replied(self, state: FedCIAState, reply: Reply) -> FedCIAState:
        """That the client has begun."""
        return replace(state, begun={**state.begun, reply.client: True})

    def absorb(self, state: FedCIAState, round: int, mean: Packet) -> FedCIAState:
        """The next version of the mean."""
        return replace(state, similarity=mean.tensors["similarity"], version=state.version + 1)

    def global_model(self, state: FedCIAState) -> Tree:
        """The mean similarities."""
        return {"similarity": state.similarity}

    def configure_evaluation(
        self, state: FedCIAState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the first table, by which those rank that never took part."""
        packets = {True: _EMPTY, False: Packet({"items": state.items})}
        return ((client, packets[client in state.begun]) for client in clients)

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """By the client's own table and vector."""
        table = client.memory["items"] if "items" in client.memory else packet.tensors["items"]
        fresh = _BACKBONE.head(table.shape[1], keyed_generator(client.seed, "head"))
        head = {n: client.memory.get(n, t)[None] for n, t in fresh.items()}
        return _BACKBONE.logits(head, table[None])[0]

    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """The same for many clients."""
        like = _like(cohort)
        fresh = _BACKBONE.head(like.shape[1], keyed_generator(cohort.seed, "head"))
        head = {n: cohort.read(n, t) for n, t in fresh.items()}
        return _BACKBONE.logits(head, cohort.read("items", like))


_EMPTY = Packet()


def _like(cohort: Cohort) -> Tensor:
    """The table of those that have none yet; where all have one, any of the same shape."""
    sent = (p.tensors["items"] for p in cohort.packets if "items" in p.tensors)
    column = cohort.memory.column("items")
    return next(sent) if column is None else next(sent, column[0])
