"""Item tables that users train for a while and now and then exchange through their mean.

One machine for all methods of which a client keeps a private head and an item table of its own: they differ in the
backbone, in how often tables are exchanged, in what a client makes of the mean when it arrives, and in which table it
ranks by. The mean is over this round's participants, unweighted. A client that was away when a mean was made gets the
newest one when it next takes part; one that never took part ranks by the newest mean with the head all begin with.

What crosses the wire: the mean (to clients that have not seen it), tables (in rounds of exchange), and in the rounds
between nothing but the request itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.federation.warming import SCIPY
from fedfi.recsys.backbones import BACKBONES, Backbone
from fedfi.recsys.graph import Graph
from fedfi.recsys.many import train_many
from fedfi.recsys.objective import LossName
from fedfi.recsys.privacy import Release
from fedfi.recsys.recipe import Recipe, fresh_items, ratings_of, recipe_of
from fedfi.recsys.recommender import TABLES_NOT_PRIVATE, ItemRate, Recommender
from fedfi.recsys.single import train_one

_HEAD = "head/"


@dataclass(frozen=True)
class Plan:
    """What tells one method of exchange from another.

    Attributes:
        backbone: Name of the scoring function.
        interval: Rounds from one exchange to the next; None exchanges never, but in the warm-up.
        alternate: Whether a batch moves the head first, then the items.
        keeps: Whether a client keeps its table between rounds and ranks by it; else it begins each round with the
            mean and ranks by the newest one.
        shared: Tensors of the head that are exchanged with the table.
        release: How uploads are made private, or None.
        graph: How a client gets a table of its own from the server, which its training is pulled to, or None.
        rank: Dimension of the random subspace that a round's updates of the table lie in, or None.
        warmup: Rounds at the beginning that all end with an exchange.
    """

    backbone: str
    interval: int | None = 1
    alternate: bool = False
    keeps: bool = True
    shared: tuple[str, ...] = ()
    release: Release | None = None
    graph: Graph | None = None
    rank: int | None = None
    warmup: int = 0

    @property
    def scoring(self) -> Backbone:
        """The backbone itself."""
        return BACKBONES[self.backbone]

    def uploads(self, round: int) -> bool:
        """Whether tables are sent at the end of a round, counted from 0."""
        return round < self.warmup or (self.interval is not None and (round + 1) % self.interval == 0)


@dataclass(frozen=True)
class ExchangeState:
    """The newest mean of tables (and of shared parts of heads), and which mean each client has.

    Attributes:
        mean: ``"items"`` ``[items, d]`` and shared tensors.
        version: How many means there were; 0 is the table that all begin with.
        received: The version that each client has; clients that never took part are not in it.
        personal: Tables that the server made for each client ``[clients, items, d]``; empty where it makes none.
        clients: All clients, in order, where there are personal tables.
        releases: How many private tables each client has sent.
    """

    mean: Tree
    version: int
    received: dict[ClientId, int]
    personal: Tensor = field(default_factory=lambda: torch.zeros(0))
    clients: list[ClientId] = field(default_factory=list)
    releases: dict[ClientId, int] = field(default_factory=dict)


@validated(frozen=True, kw_only=True, config=CONFIG)
class Exchange(Recommender[ExchangeState]):
    """Local training of a table and a private head, and an exchange of tables through their mean."""

    item_rate: ItemRate = 4.0
    loss: Annotated[LossName, Field(description="each example alone, or a positive against its negatives")] = "bce"

    refused: ClassVar[Mapping[str, str]] = TABLES_NOT_PRIVATE

    @abstractmethod
    def plan(self) -> Plan:
        """What is exchanged, when and how."""

    @abstractmethod
    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """The table of a client that has one when a mean arrives, both ``[items, d]``."""

    @abstractmethod
    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """The same for clients `who` of a cohort, in place: their rows of `tables` ``[clients, items, d]``."""

    def loads(self) -> tuple[str, ...]:
        """What the accounting of private tables needs."""
        return () if self.plan().release is None else SCIPY

    def init(self, task: Task, rng: torch.Generator) -> ExchangeState:
        """The table that all begin with."""
        recipe_of(task, 0, self.item_rate)
        plan = self.plan()
        kept = plan.keeps or plan.graph is not None
        items = fresh_items(task, rng, len(ratings_of(task).users) if kept else 1).clone()
        shared = plan.scoring.head(items.shape[1], rng) if plan.shared else {}
        state = ExchangeState({"items": items} | {n: shared[n] for n in plan.shared}, 0, {})
        if plan.rank is not None:
            random_subspace(items.shape[1], plan.rank, 0)  # refuses a rank that is too large
        if plan.graph is None:
            return state
        users = list(ratings_of(task).users)
        return replace(state, personal=items.repeat(len(users), 1, 1), clients=users)

    def configure(
        self, state: ExchangeState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Asks clients to train, sends the newest mean to those without it, and says whether to send tables."""
        plan = self.plan()
        upload = plan.uploads(round)
        known = upload and plan.release is not None
        tensors = {True: state.mean, False: {"items": state.mean["items"]} if known else {}}
        extra = {} if plan.rank is None else {"subspace": int(torch.randint(2**31, (), generator=rng))}
        packets = {new: Packet(tensors[new], {"new": new, "upload": upload, **extra}) for new in (False, True)}
        row = {client: i for i, client in enumerate(state.clients)}
        for client in self.sample(clients, rng):
            new = not plan.keeps or state.received.get(client, -1) < state.version
            packet = packets[new]
            if plan.graph is not None:
                packet = Packet({**packet.tensors, "anchor": state.personal[row[client]]}, packet.scalars)
            yield client, packet

    def reply_layout(self, state: ExchangeState, packet: Packet) -> Layout:
        """A table where one was asked for, and the loss unless it is private; else nothing."""
        if not packet.scalars["upload"]:
            return Layout()
        plan = self.plan()
        like = state.mean if plan.rank is None else state.mean | {"items": state.mean["items"][:, : plan.rank]}
        return Layout.like(like, loss=float) if plan.release is None else Layout.like(like)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Takes in a new mean, trains, and sends the table if asked."""
        plan = self.plan()
        new, memory = bool(packet.scalars["new"]), client.memory
        mean = packet.tensors
        head = self._head(
            client, mean if new else {}, client.memory["items"] if "items" in client.memory else mean["items"]
        )
        if not plan.keeps or "items" not in memory:
            table = mean["items"]
        elif new:
            table = self.take_in(client, mean["items"], memory["items"], head)
        else:
            table = memory["items"]
        recipe = self._recipe(client.task, client.round, packet, table.shape)
        table, head, loss = train_one(client, plan.scoring, table, head, recipe, packet.tensors.get("anchor"))
        if plan.keeps:
            memory["items"] = table
        for name, value in head.items():
            memory[_HEAD + name] = value
        if not packet.scalars["upload"]:
            return Packet()
        sent = {"items": table} | {n: head[n] for n in plan.shared}
        if plan.release is not None:
            noise = client.rng("release")
            sent["items"] = plan.release.of(sent["items"], mean["items"], noise)
        if recipe.subspace is not None:
            sent["items"] = (sent["items"] - mean["items"]) @ recipe.subspace
        return Packet(sent, {"loss": loss} if plan.release is None else {})

    def cohort_update(self, cohort: Cohort) -> Iterable[Packet]:
        """The same for many clients."""
        plan, task = self.plan(), cohort.task
        new = torch.tensor([bool(p.scalars["new"]) for p in cohort.packets])
        mean: Mapping[str, Tensor] = next((p.tensors for p in cohort.packets if p.scalars["new"]), {})
        upload = bool(cohort.packets[0].scalars["upload"])
        items, dimension = len(ratings_of(task).items), _dimension(cohort, mean)
        head = self._heads(cohort, dimension, new, mean)
        if plan.keeps:
            had = cohort.has("items")
            tables = cohort.memory.create("items", (items, dimension), torch.float32)
            for row in cohort.rows[~had].tolist():
                tables[row] = mean["items"]
            who = (had & new).nonzero()[:, 0]
            if len(who):
                self.take_in_many(cohort, who, mean["items"], tables, head)
            cohort.memory.present("items")[cohort.rows] = True
            rows = cohort.rows
        else:
            tables = mean["items"].repeat(len(cohort), 1, 1)
            rows = torch.arange(len(cohort))
        recipe = self._recipe(task, cohort.round, cohort.packets[0], tables.shape[1:])
        anchors = None if plan.graph is None else [p.tensors["anchor"] for p in cohort.packets]
        loss = train_many(cohort, plan.scoring, tables.view(-1, dimension), rows * items, head, recipe, anchors)
        for name, value in head.items():
            cohort.write(_HEAD + name, value)
        if not upload:
            return [_EMPTY] * len(cohort)
        return self._replies(cohort, plan, tables, rows, head, loss, recipe)

    def _recipe(self, task: Task, round: int, packet: Packet, shape: Sequence[int]) -> Recipe:
        """The recipe of a round, for a table of a shape `[items, d]`."""
        plan = self.plan()
        recipe = recipe_of(task, round, self.item_rate, plan.alternate, self.loss)
        if plan.graph is not None:  # the gradient of strength * mean((table - anchor)^2)
            pull = min(1.0, recipe.item_rate * plan.graph.strength * 2.0 / (shape[0] * shape[1]))
            recipe = replace(recipe, pull=pull)
        if plan.rank is not None:
            recipe = replace(recipe, subspace=random_subspace(shape[1], plan.rank, int(packet.scalars["subspace"])))
        return recipe

    def _replies(
        self, cohort: Cohort, plan: Plan, tables: Tensor, rows: Tensor, head: Tree, loss: Tensor, recipe: Recipe
    ) -> Iterator[Packet]:
        for i, (row, value) in enumerate(zip(rows.tolist(), loss.tolist(), strict=True)):
            sent = {"items": tables[row]} | {n: head[n][i] for n in plan.shared}
            if plan.release is not None:
                noise = keyed_generator(cohort.seed, "client", cohort.round, cohort.ids[i], "release")
                sent["items"] = plan.release.of(sent["items"], cohort.packets[i].tensors["items"], noise)
            if recipe.subspace is not None:
                sent["items"] = (sent["items"] - cohort.packets[i].tensors["items"]) @ recipe.subspace
            yield Packet(sent, {"loss": value} if plan.release is None else {})

    def aggregate(
        self, state: ExchangeState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[ExchangeState, Metrics]:
        """The plain mean of the tables that came."""
        mean, loss, count, subspace, plan = WeightedMean(), 0.0, 0, 0, self.plan()
        received, releases = dict(state.received), dict(state.releases)
        tables: dict[ClientId, Tensor] = {}
        took = 0
        for reply in replies:
            took += self._note(state.version, reply, received, releases)
            if reply.sent.scalars["upload"]:
                mean.add(self.summand(state, reply.sent, reply.packet).tensors)
                subspace = int(reply.sent.scalars.get("subspace", 0))
                if plan.graph is not None:
                    tables[reply.client] = reply.packet.tensors["items"].clone()
                loss, count = loss + float(reply.packet.scalars.get("loss", 0.0)), count + 1
        state = replace(state, received=received, releases=releases)
        metrics: Metrics = {"means/taken": float(took)} if took else {}
        if not count:
            return state, metrics
        new, items = mean.mean(), state.mean["items"]
        if plan.rank is not None:
            new["items"] = items + new["items"] @ random_subspace(items.shape[1], plan.rank, subspace).T
        if plan.graph is not None:
            row = {client: i for i, client in enumerate(state.clients)}
            spread = plan.graph.spread(torch.stack(list(tables.values())))
            new["items"], personal = spread.mean(0), state.personal.clone()
            personal[[row[client] for client in tables]] = spread
            state = replace(state, personal=personal)
        if plan.release is None:
            metrics["train/loss"] = loss / count
        else:
            metrics |= plan.release.spent(max(releases.values()))
        return self.absorb(state, round, Packet(new)), metrics

    def sums(self, round: int) -> bool:
        """In rounds of exchange."""
        return self.plan().uploads(round)

    def summand_layout(self, state: ExchangeState) -> Layout:
        """A table, and the shared parts of a head."""
        return Layout.like(state.mean)

    def summand(self, state: ExchangeState, sent: Packet, reply: Packet) -> Packet:
        """The reply but for its loss."""
        return Packet(reply.tensors)

    def replied(self, state: ExchangeState, reply: Reply) -> ExchangeState:
        """Which mean the client has, and how much it has released."""
        received, releases = dict(state.received), dict(state.releases)
        self._note(state.version, reply, received, releases)
        return replace(state, received=received, releases=releases)

    def absorb(self, state: ExchangeState, round: int, mean: Packet) -> ExchangeState:
        """The next version of the mean; a private one is a change of the last."""
        new = dict(mean.tensors)
        if self.plan().release is not None:
            new["items"] = state.mean["items"] + new["items"]
        return replace(state, mean=new, version=state.version + 1)

    def spent(self, state: ExchangeState, rounds: int) -> Metrics:
        """What a client has given away that took part in all of so many rounds; nothing where tables are not private.

        See `fedfi.recsys.privacy`.
        """
        plan = self.plan()
        return {} if plan.release is None else dict(plan.release.spent(sum(map(plan.uploads, range(rounds)))))

    def _note(self, version: int, reply: Reply, received: dict[ClientId, int], releases: dict[ClientId, int]) -> bool:
        """Writes down what a reply says of its client; returns whether it has taken a mean into a table of its own."""
        plan, took = self.plan(), False
        if reply.sent.scalars["new"]:
            took = plan.keeps and reply.client in received
            received[reply.client] = version
        if reply.sent.scalars["upload"] and plan.release is not None:
            releases[reply.client] = releases.get(reply.client, 0) + 1
        return took

    def global_model(self, state: ExchangeState) -> Tree:
        """The newest mean."""
        return state.mean

    def configure_evaluation(
        self, state: ExchangeState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the mean to clients that rank by it, or have no table of their own."""
        keeps, nothing, mean = self.plan().keeps, Packet(), Packet(state.mean)
        return ((c, nothing if keeps and c in state.received else mean) for c in clients)

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """By the client's own table, or the mean, and its own head."""
        plan, own = self.plan(), client.memory
        table = own["items"] if plan.keeps and "items" in own else packet.tensors["items"]
        head = self._head(client, {} if plan.keeps else packet.tensors, table)
        return plan.scoring.logits({n: t[None] for n, t in head.items()}, table[None])[0]

    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """The same for many clients."""
        plan, has = self.plan(), cohort.has("items")
        mean: Mapping[str, Tensor] = next((p.tensors for p in cohort.packets if p.tensors), {})
        new = torch.full((len(cohort),), not plan.keeps)
        head = self._heads(cohort, _dimension(cohort, mean), new, mean)
        tables = cohort.memory.column("items")
        if not plan.keeps or tables is None:
            return plan.scoring.logits(head, mean["items"].expand(len(cohort), -1, -1))
        first = int(cohort.rows[0])
        if bool(has.all()) and bool((cohort.rows.diff() == 1).all()):  # a view, not a copy
            return plan.scoring.logits(head, tables[first : first + len(cohort)])
        own = tables[cohort.rows]
        if not bool(has.all()):
            own[~has] = mean["items"]
        return plan.scoring.logits(head, own)

    def _head(self, client: Client, mean: Mapping[str, Tensor], table: Tensor) -> Tree:
        """The client's head, with the shared parts of a mean that has just arrived."""
        plan = self.plan()
        fresh = fresh_head(plan.scoring, table.shape[1], client.seed)
        own = {n: client.memory.get(_HEAD + n, t) for n, t in fresh.items()}
        return own | {n: mean[n] for n in plan.shared if n in mean}

    def _heads(self, cohort: Cohort, dimension: int, new: Tensor, mean: Mapping[str, Tensor]) -> Tree:
        """The heads of a cohort, copies ``[n, ...]``."""
        plan = self.plan()
        fresh = fresh_head(plan.scoring, dimension, cohort.seed)
        heads = {n: cohort.read(_HEAD + n, t) for n, t in fresh.items()}
        for name in plan.shared if bool(new.any()) else ():
            heads[name][new] = mean[name]
        return heads


_EMPTY = Packet()


def random_subspace(dimension: int, rank: int, seed: int) -> Tensor:
    """Orthonormal columns ``[d, r]`` of a random subspace; the same for everyone with the seed.

    Raises:
        InputError: If the rank is larger than the dimension.
    """
    if rank > dimension:
        raise InputError(f"algorithm.rank = {rank}: must be at most the dimension (nearest valid: {dimension})")
    drawn = torch.randn(dimension, rank, generator=keyed_generator(seed, "subspace"), dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(drawn)[0]
    return basis.float()


def fresh_head(backbone: Backbone, dimension: int, seed: int) -> Tree:
    """The head that all users begin with."""
    return backbone.head(dimension, keyed_generator(seed, "head"))


def _dimension(cohort: Cohort, mean: Mapping[str, Tensor]) -> int:
    """Numbers an item, from the table that is at hand."""
    column = cohort.memory.column("items")
    return int((mean["items"] if column is None else column).shape[-1])
