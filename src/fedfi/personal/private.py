"""Any linear method with differential privacy: updates are clipped and perturbed, and epsilon is kept count of.

Geyer et al., Differentially Private Federated Learning: A Client Level Perspective, 2017; McMahan et al., Learning
Differentially Private Recurrent Language Models, ICLR 2018.

| usual | here |
|---|---|
| clip each client's update to norm C | `clip` |
| central: noise z C on the sum, by a server that is trusted | `where = "server"` |
| local: noise z C on each update before it leaves | `where = "client"` |
| z, or the z that reaches epsilon in so many rounds | `noise`, or `epsilon` and `rounds` |
| (epsilon, delta) by round | `privacy/epsilon`, see `privacy.accounting` |

What is protected is a whole client: all its examples together (replace-one). Means are uniform, since a weight by
examples would tell, and change, more than clipping allows for. Nothing but updates leaves: losses and numbers of
examples are sent as 0 and 1, and methods whose replies hold statistics of norm layers are refused.

Of FedFIbOS (`StepsByUpdates`) the dense updates, zero off the mask, are clipped and added up; noise goes onto every
entry of the sum, also of those that nobody held, and all is divided by the number of clients. Its masks come from data
too, so a client's own average of Fisher information may choose that client's masks alone: the server, which is trusted,
uses it for nothing else, and nothing that others have measured reaches a client. What an epsilon does not cover is what
the server itself sees and stores: masks, Fisher values, levels. Options that would tell more are refused, and so is
`where = "client"`, under which Fisher values would travel as they are.

Assumed: who fails is public, as who takes part is, and does not depend on a single client's data; a sum is divided by
the number of clients that delivered. An update that is no number is therefore sent as zero and no failure. Training
whose loss is no number still ends as one, which epsilon does not cover: choose a rate at which none diverges.

Deviations: with `source = "keyed"` noise is a function of the run's seed, as everything here, so whoever knows the
seed can take it off again: for experiments. `source = "system"` draws it from the system; such a run cannot be
repeated to the bit. Samples are ordinary floating-point Gaussians, not the discrete ones that exact guarantees need.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, final

import torch
from pydantic import Field, SkipValidation, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass as validated

from fedfi.errors import InputError
from fedfi.federation.algorithm import (
    CONFIG,
    Algorithm,
    ClientId,
    EvaluatesClients,
    Metrics,
    NotesOnClients,
    Reply,
    StepsByUpdates,
)
from fedfi.federation.client import Client
from fedfi.federation.folding import WeightedMean
from fedfi.federation.hooks import check_packet, folded
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.sampling import round_size
from fedfi.federation.task import Task
from fedfi.personal.replica import refuse_unless_summed, with_sizes, wrapped
from fedfi.privacy import accounting, noise
from fedfi.privacy.noise import Spread


@dataclass(frozen=True)
class PrivateState:
    """The inner method's state, and how much has been released.

    Attributes:
        inner: The inner method's.
        multiplier: z.
        clients: All of them.
        cohort: A round's.
        rounds: Released so far.
    """

    inner: Any
    multiplier: float
    clients: int
    cohort: int
    rounds: int = 0


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Private(Algorithm[PrivateState]):
    """A linear method whose updates are clipped and perturbed."""

    algorithm: Annotated[SkipValidation[Any], Field(description="the method, with weights = 'uniform'")]
    where: Annotated[Literal["server", "client"], Field(description="who adds noise: central or local privacy")] = (
        "server"
    )
    clip: Annotated[float, Field(gt=0, description="C, largest norm of an update")] = 1.0
    noise: Annotated[float | None, Field(gt=0, description="z: the noise has standard deviation z C")] = None
    epsilon: Annotated[float | None, Field(gt=0, description="budget instead of noise")] = None
    rounds: Annotated[
        int | None, Field(ge=1, description="rounds that the budget must last; in a file by default all")
    ] = None
    delta: Annotated[float, Field(gt=0, lt=1, description="delta")] = 1e-5
    source: Annotated[Literal["keyed", "system"], Field(description="where noise comes from")] = "keyed"

    instead: ClassVar[Sequence[tuple[str, ...]]] = (("noise", "epsilon"),)
    linear: ClassVar[bool] = True
    weights: ClassVar[Literal["uniform"]] = "uniform"

    @model_validator(mode="before")
    @classmethod
    def _who_takes_part(cls, given: Any) -> Any:
        return with_sizes(given, "private")

    @field_validator("algorithm", mode="before")
    @classmethod
    def _given(cls, value: Any, info: ValidationInfo) -> Any:
        return wrapped(value, info.context)

    @model_validator(mode="after")
    def _can_be_private(self) -> Self:
        refuse_unless_summed(self.algorithm, "private")
        name, weights = type(self.algorithm).__name__, getattr(self.algorithm, "weights", "uniform")
        if isinstance(self.algorithm, Private):
            raise ValueError("Private cannot be made private: it is")  # noqa: TRY004 - pydantic turns it into a message
        if self._dense and self.where == "client":
            raise ValueError(
                f"{name} cannot be made private with where = 'client': what clients send beside their updates would"
                " travel without noise (nearest valid: where = 'server')"
            )
        if self._dense and (leak := self.algorithm.leaks()):
            raise ValueError(f"{name} cannot be made private: {leak}")
        if weights != "uniform":
            raise ValueError(
                f"{name} weighs clients by {weights}: a client's share of the mean would depend on its data"
                " (nearest valid: weights = 'uniform')"
            )
        return self

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        given = {k: v for k in ("noise", "epsilon", "rounds") if (v := getattr(self, k)) is not None}
        got = ", ".join(f"{k} = {v:g}" for k, v in given.items())
        wanted = "give noise, or epsilon and the rounds that it must last"
        if not {"noise", "epsilon"} & set(given):
            raise ValueError(f"{wanted}; got {got or 'none of them'} (nearest valid: noise = 1.0)")
        if "noise" in given and len(given) > 1:
            raise ValueError(f"{wanted}, not both; got {got} (nearest valid: noise = {self.noise:g} alone)")
        if "epsilon" in given and "rounds" not in given:
            raise ValueError(f"{wanted}; got {got} alone, without rounds")
        return self

    def init(self, task: Task, rng: torch.Generator) -> PrivateState:
        """The inner method's state; the noise for the budget."""
        inner = self._inner.init(task, rng)
        clients = len(task.data.clients)
        cohort = round_size(clients, self.participation, self.clients_per_round)
        state = PrivateState(inner, self._multiplier(clients), clients, cohort)
        if buffers := _buffers(inner):
            raise InputError(
                f"{buffers[0]!r} is a statistic of the data, which clipping does not cover; use group norm"
            )
        self.spent(state, state.rounds)
        return state

    def configure(
        self, state: PrivateState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """What the inner method sends, and how much noise belongs on the answer."""
        for client, packet in self._inner.configure(state.inner, round, clients, rng):
            yield client, Packet(packet.tensors, {**packet.scalars, "private:noise": state.multiplier}, packet.blobs)

    def reply_layout(self, state: PrivateState, packet: Packet) -> Layout:
        """The inner method's."""
        return self._inner.reply_layout(state.inner, _without(packet))

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """The inner method's work; the update is clipped, and perturbed where privacy is local.

        An update that is no number is sent as zero: refused, it would tell of the data, and change the number of
        clients that a mean is over.
        """
        reply = check_packet(self._inner, "client_update", self._inner.client_update(_without(packet), client)).cpu()
        if not all(bool(torch.isfinite(t).all()) for t in reply.tensors.values()):
            reply = dataclasses.replace(reply, tensors={n: torch.zeros_like(t) for n, t in reply.tensors.items()})
        clipped = ["update"] if self._dense else list(reply.tensors)
        update = noise.clipped({n: reply.tensors[n] for n in clipped}, self.clip)
        if self.where == "client":
            deviation = float(packet.scalars["private:noise"]) * self.clip
            update = noise.perturbed(update, deviation, self._source(client.rng("private")))
        silent = {n: type(v)(1 if isinstance(v, int) else 0) for n, v in reply.scalars.items()}
        return Packet({**reply.tensors, **update}, silent, reply.blobs)

    def aggregate(
        self, state: PrivateState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[PrivateState, Metrics]:
        """The inner method's; central noise goes onto the first reply, and so onto the sum."""
        if self._dense:
            return self._stepped(state, replies, rng)
        source = self._source(rng)

        def noisy() -> Iterator[Reply]:
            for number, reply in enumerate(replies):
                update = noise.clipped(dict(reply.packet.tensors), self.clip) if self.where == "server" else None
                if update is not None and number == 0:
                    update = noise.perturbed(update, state.multiplier * self.clip, source)
                packet = reply.packet if update is None else dataclasses.replace(reply.packet, tensors=update)
                yield dataclasses.replace(reply, packet=packet, sent=_without(reply.sent))

        inner, metrics = folded(self._inner, "aggregate", state.inner, round, noisy(), rng)
        state = dataclasses.replace(state, inner=inner, rounds=state.rounds + 1)
        metrics = {k: v for k, v in metrics.items() if k != "train/loss"}
        return state, metrics | self.spent(state, state.rounds)

    def _stepped(
        self, state: PrivateState, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[PrivateState, Metrics]:
        """The inner method's step by the mean of dense updates, with noise on every entry, held by anybody or not.

        What else it keeps of each client stays between the server and that client.
        """
        method, mean, inner = self._inner, WeightedMean(), state.inner
        assert isinstance(method, StepsByUpdates)
        for reply in replies:
            reply = dataclasses.replace(reply, sent=_without(reply.sent))
            update = method.summand(state.inner, reply.sent, reply.packet).tensors["update"]
            mean.add(noise.clipped({"update": update}, self.clip))
            inner = method.replied(inner, reply)
        deviation = state.multiplier * self.clip / mean.weight
        update = noise.perturbed(mean.mean(), deviation, self._source(rng))["update"]
        state = dataclasses.replace(state, inner=method.stepped(inner, update), rounds=state.rounds + 1)
        return state, self.spent(state, state.rounds)

    def spent(self, state: PrivateState, rounds: int) -> Metrics:
        """Epsilon and delta of so many rounds, and the noise multiplier."""
        epsilon = accounting.epsilon(state.multiplier, rounds, self.delta, self._sampling(state.clients))
        return {"privacy/epsilon": epsilon, "privacy/delta": self.delta, "privacy/noise": state.multiplier}

    def mixes_networks(self) -> bool:
        """The inner method's."""
        return self._inner.mixes_networks()

    def global_model(self, state: PrivateState) -> Tree:
        """The inner method's."""
        return self._inner.global_model(state.inner)

    def configure_evaluation(
        self, state: PrivateState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """The inner method's."""
        inner = self._inner
        return inner.configure_evaluation(state.inner, clients, rng) if isinstance(inner, EvaluatesClients) else []

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """The inner method's."""
        inner = self._inner
        if not isinstance(inner, EvaluatesClients):
            raise InputError(f"{type(inner).__name__} does not evaluate on clients")
        return inner.client_evaluate(packet, client)

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """A delta that promises nothing, and what the inner method has to say."""
        inner, notes = self._inner, []
        if self.delta * len(clients) >= 1:
            notes.append(
                f"delta = {self.delta:g} with {len(clients)} clients: publishing one client's data whole would be as"
                f" private; delta should be far below 1/{len(clients)}"
            )
        return notes + (inner.notes_on_clients(clients) if isinstance(inner, NotesOnClients) else [])

    @property
    def _inner(self) -> Algorithm[Any]:
        found: Algorithm[Any] = dataclasses.replace(
            self.algorithm, participation=self.participation, clients_per_round=self.clients_per_round
        )
        return found

    @property
    def _dense(self) -> bool:
        """Whether what is perturbed is the mean of dense updates, and not replies as they are."""
        return not self.algorithm.linear and isinstance(self.algorithm, StepsByUpdates)

    def spread(self, clients: int) -> Spread:
        """That of the noise that each of so many clients puts on an entry of its update."""
        deviation = self._multiplier(clients) * self.clip if self.where == "client" else 0.0
        return Spread.gaussian(deviation, self.clip)

    def _multiplier(self, clients: int) -> float:
        if self.epsilon is None or self.rounds is None:
            return self.noise or 1.0
        return accounting.multiplier(self.epsilon, self.rounds, self.delta, self._sampling(clients))

    def _sampling(self, clients: int) -> accounting.Sampling:
        """Whose being drawn seldom counts: nobody's where noise is local, or where something of a client is kept.

        Local noise is on each single update, which who sees it sees whoever else was drawn. And what is kept, such as a
        head or masks, makes a contribution depend on which rounds its client was drawn in before, so that rounds are no
        composition of subsampled mechanisms; as if all took part in all rounds, they are one of Gaussians.
        """
        drawn = self.where == "server" and self.algorithm.forgetful
        return accounting.Sampling(
            clients, round_size(clients, self.participation, self.clients_per_round) if drawn else clients
        )

    def _source(self, rng: torch.Generator) -> torch.Generator:
        if self.source == "keyed":
            return rng
        return torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)


def _buffers(state: Any) -> list[str]:
    """The buffers that a state, or its model, says it has."""
    return [*getattr(state, "buffers", []), *getattr(getattr(state, "model", None), "buffers", [])]


def _without(packet: Packet) -> Packet:
    return Packet(packet.tensors, {k: v for k, v in packet.scalars.items() if k != "private:noise"}, packet.blobs)
