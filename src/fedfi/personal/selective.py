"""Averaging of which a part, or all, travels as ciphertexts: what the encrypted baselines have in common.

Every client sends every packet. The protected ones are encrypted, densely, the others travel in the clear as the same
whole numbers, so that plain, partly and fully encrypted runs have the same means. The server adds up both kinds and
sends the sums with the next round; clients divide, and move their replica of the inner method's state (`replica`).

Clients that were away get the releases that they missed, in order. A client's replica begins at the first state, so
one that never took part needs all of them: the server keeps what anybody still lacks, without end while a client has
not come. `history` bounds that; one that missed more cannot follow, and fails saying so.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.crypto.layout import PacketLayout
from fedfi.crypto.message import Gate, Terms
from fedfi.crypto.summing import PlainSum
from fedfi.errors import InputError, RunError
from fedfi.federation.algorithm import (
    CONFIG,
    Algorithm,
    ClientId,
    EvaluatesClients,
    Metrics,
    NeedsPrecision,
    NotesOnClients,
    Reply,
)
from fedfi.federation.client import Client
from fedfi.federation.packet import Layout, Packet, Scalar, Tree, decode
from fedfi.federation.sampling import round_size
from fedfi.federation.task import Task
from fedfi.numerics.selection import pack_bits, top_k_mask, unpack_bits
from fedfi.personal import replica
from fedfi.personal.encryption import ENCRYPTED, Encryption, Exchange, groups_of
from fedfi.personal.replica import Form, Spends
from fedfi.personal.sealing import Sealer, weight_of
from fedfi.personal.tally import Release, Tally, counted, raw, refusing, stored
from fedfi.personal.voting import LEAST, budget_of

_REPLY, _NUMBER = "he:reply", "he:number"
_HORIZON = 1000
"""Rounds within which no client is expected to miss more than `history` releases, or a run says so."""


@dataclass(frozen=True)
class SelectiveState:
    """What the server knows.

    Attributes:
        inner: The inner method's state before the first round.
        seed: From which it was made.
        run: Sixteen hexadecimal digits.
        contributors: Clients a round.
        protected: Bitmap of the packets that are encrypted; empty before the first agreement.
        releases: Those that some client still needs, at most the last `history`, encoded, uint8.
        keys: The key of each.
        number: Releases so far.
        synced: The newest release that each client has taken in; 0 for one that has not come.
        cohort: Who took part in this round's agreement.
    """

    inner: Any
    seed: int
    run: str
    contributors: int
    protected: Tensor
    releases: list[Tensor] = dataclasses.field(default_factory=list)
    keys: list[str] = dataclasses.field(default_factory=list)
    number: int = 0
    synced: dict[str, int] = dataclasses.field(default_factory=dict)
    cohort: list[str] = dataclasses.field(default_factory=list)


@validated(frozen=True, kw_only=True, config=CONFIG)
class Selective(Algorithm[SelectiveState]):
    """Weighted means of which clients decrypt a part."""

    encryption: Annotated[Encryption, Field(description="scheme, keys, packets")] = Field(default_factory=Encryption)
    most_examples: Annotated[int, Field(ge=1, description="examples from which on a client's weight grows no more")] = (
        1024
    )
    history: Annotated[
        int | None, Field(ge=1, description="most releases kept for clients that were away; none: all that they need")
    ] = None

    central: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]] = ENCRYPTED
    agrees: ClassVar[Literal["never", "once", "each round"]] = "never"
    """When clients agree on what is protected."""

    @abstractmethod
    def inner(self) -> Algorithm[Any]:
        """The method whose replies are averaged."""

    @abstractmethod
    def ratio(self) -> float:
        """Share of the packets that is protected, in (0, 1]."""

    @abstractmethod
    def urgency(self, client: Client, update: Tensor) -> Tensor:
        """How much each entry of the reply's vector wants protection.

        Args:
            client: Its workbench holds the trained model, or, where the agreement comes once, the first one.
            update: The reply's vector `[size]`; zeros where nothing was trained.
        """

    def init(self, task: Task, rng: torch.Generator) -> SelectiveState:
        """The inner method's first state, from a seed that clients are told."""
        seed = rng.initial_seed()  # so that the first model is that of every other method
        self.encryption.strangers(list(task.data.clients))
        state = SelectiveState(
            inner=replica.first_state(self._method(), task, seed),
            seed=seed,
            run=f"{int(torch.randint(2**62, (), generator=rng)):016x}",
            contributors=round_size(len(task.data.clients), self.participation, self.clients_per_round),
            protected=torch.zeros(0, dtype=torch.uint8),
            synced=dict.fromkeys(task.data.clients, 0),
        )
        if state.contributors < LEAST:
            raise InputError(
                f"{state.contributors} clients a round: with fewer than {LEAST} each learns what the others sent"
                f" (nearest valid: {LEAST})"
            )
        agreed = self.exchange_of(state)
        agreed.fixed.encode(torch.zeros(1))
        self._check_bits(agreed)
        if self.agrees == "never":
            protected = top_k_mask(torch.zeros(agreed.layout.packets), budget_of(self.ratio(), agreed.layout.packets))
            state = dataclasses.replace(state, protected=stored(pack_bits(protected)))
        return state

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """What there is to know of keys, of clients that will fall behind, and what the inner method has to say."""
        inner = self.inner()
        notes = self.encryption.notes(clients) + self._notes_on_history(len(clients))
        return notes + (inner.notes_on_clients(clients) if isinstance(inner, NotesOnClients) else [])

    def _notes_on_history(self, clients: int) -> list[str]:
        """Says where a client will probably be away for longer than releases are kept.

        A client of n misses h rounds in a row with probability (1 - p)^h; of n T such stretches none is expected to be
        longer than ln(n T) / -ln(1 - p).
        """
        share = round_size(clients, self.participation, self.clients_per_round) / clients
        if self.history is None or share == 1:
            return []
        gap = math.ceil(math.log(clients * _HORIZON) / -math.log(1 - share))
        if self.history >= gap:
            return []
        return [
            f"history = {self.history}: with {share:.3g} of {clients} clients a round some are away for up to about"
            f" {gap} rounds, and one that misses more than {self.history} releases fails for good (nearest that is"
            f" enough: {gap}; by default as many are kept as are needed)"
        ]

    def _check_bits(self, agreed: Exchange) -> None:
        """Refuses a fixed point that is too coarse, or too narrow, for what the method sums."""
        method = self.inner()
        if not isinstance(method, NeedsPrecision):
            return
        name, fixed, least = type(method).__name__, agreed.fixed, method.least_bits()
        if fixed.clip < (clip := method.least_clip()):
            raise InputError(
                f"encryption.clip = {fixed.clip:g}: every client of {name} sends values of {clip:g}, and would fail"
                f" (nearest valid: {clip:g})"
            )
        if fixed.bits < least:
            nearest = f"fraction_bits = {least}"
            if self.encryption.fraction_bits is None:
                nearest = f"clip = {fixed.clip / 2 ** (least - fixed.bits):g}, or fewer clients a round"
            raise InputError(
                f"encryption: {fixed.bits} binary digits after the point are left, but what {name} sums needs {least}"
                f" (nearest valid: {nearest})"
            )

    # -- agreement on what is protected

    def configure_negotiation(
        self, state: SelectiveState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Asks all clients once, or this round's each time."""
        if self.agrees == "once" and not state.protected.numel():
            return self._news(state, clients, round, clients)
        if self.agrees == "each round":
            return self._news(state, self.sample(clients, rng), round, clients)
        return []

    def negotiation_layout(self, state: SelectiveState, packet: Packet) -> Layout:
        """A bitmap of packets."""
        return Layout(blobs={"mask": -(-self.exchange_of(state).layout.packets // 8)})

    def client_negotiate(self, packet: Packet, client: Client) -> Packet:
        """The packets that want protection most: after training where that is asked each round, else before."""
        if self.agrees == "each round":
            agreed, form, _, summand = self._worked(packet, client, remembered=True)
            update = form.vector(summand)
        else:  # once, before anything is trained
            agreed, form, state = self._state(packet, client)
            client.workbench.load(self._method().global_model(state))
            update = torch.zeros(agreed.layout.size)
        urgency = self.urgency(client, update).double()
        urgency[len(urgency) - len(form.scalars) :] = 0  # a loss wants no protection
        scores = agreed.layout.cut(urgency).sum(1)
        mask = top_k_mask(scores, budget_of(self.ratio(), agreed.layout.packets))
        return Packet({}, {}, {"mask": pack_bits(mask)})

    def negotiated(
        self, state: SelectiveState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[SelectiveState, Metrics]:
        """The packets with most votes; of equal ones the first."""
        packets = self.exchange_of(state).layout.packets
        taken = list(replies)
        if not taken:
            return state, {}
        votes = counted([unpack_bits(r.packet.blobs["mask"], packets) for r in taken], packets)
        chosen = top_k_mask(votes.double(), budget_of(self.ratio(), packets))
        synced = dict(state.synced)
        if self.agrees == "each round":  # they took in what is new, to train
            synced |= {r.client: int(r.sent.scalars["number"]) for r in taken}
        cohort = [r.client for r in taken]
        return dataclasses.replace(state, protected=stored(pack_bits(chosen)), synced=synced, cohort=cohort), {}

    # -- the exchange

    def configure(
        self, state: SelectiveState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """The sums of the rounds that each client has not seen, and what is protected."""
        if not state.protected.numel():
            return []  # nothing was agreed on
        cohort = state.cohort if self.agrees == "each round" else self.sample(clients, rng)
        return self._news(state, cohort, round, clients)

    def reply_layout(self, state: SelectiveState, packet: Packet) -> Layout:
        """A message of the protected packets, and the others in the clear; nothing in a round without a sum."""
        if not self._sums(int(packet.scalars["round"])):
            return Layout()
        agreed, form = self.exchange_of(state), self._form(state.inner)
        groups, clear = self.divided(state.protected, agreed)
        gate = Gate(self.terms_of(agreed, groups), round=int(packet.scalars["round"]), phase=0, verify=agreed.verify())
        return Layout(
            tensors=form.counters,
            blobs={"clear": 4 * len(clear) * agreed.row},
            most_bytes={"message": gate.terms.most_bytes()},
            also=refusing(gate),
        )

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """The inner method's work; what is summed of its reply leaves as packets."""
        agreed, form, _, summand = self._worked(packet, client, remembered=False)
        if not self._sums(client.round):
            return Packet()
        groups, clear = self.divided(stored(packet.blobs["protected"]), agreed)
        vector = form.vector(summand)
        agreed.fixed.refuse_cut(vector[: len(vector) - len(form.scalars)])  # a loss may be cut; the model may not
        sealer = Sealer(agreed, client)
        weight = self._weight(client)
        mask = torch.ones(agreed.layout.packets, dtype=torch.bool)
        mask[clear] = False
        message = sealer.message(
            self.terms_of(agreed, groups), mask, groups, vector, weight, per=agreed.per_ciphertext()
        )
        lines = torch.zeros(len(clear), agreed.row, dtype=torch.int64)
        if len(clear):
            lines[:, :-2] = agreed.fixed.encode(agreed.layout.cut(vector)[clear], weight)
            lines[:, -2] = agreed.fixed.weight(weight)
        blobs = {"message": message, "clear": lines.to(torch.int32).numpy().tobytes()}
        return Packet({n: summand.tensors[n] for n in form.counters}, {}, blobs)

    def aggregate(
        self, state: SelectiveState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[SelectiveState, Metrics]:
        """Adds up, reply by reply; in a round without a sum it only knows who has taken in what."""
        if not self._sums(round):
            heard = {r.client: int(r.sent.scalars["number"]) for r in replies}
            return dataclasses.replace(state, synced=state.synced | heard), self._spent(state, round)
        agreed, form = self.exchange_of(state), self._form(state.inner)
        groups, clear = self.divided(state.protected, agreed)
        terms = self.terms_of(agreed, groups)
        gate = Gate(terms, round=round, phase=0, verify=agreed.verify())
        tally, plain, synced = Tally(agreed, groups), PlainSum(), dict(state.synced)
        counters: Tree = {}
        for reply in replies:
            synced[reply.client] = int(reply.sent.scalars["number"])
            if not tally.add_whole(gate.open(reply.packet.blobs["message"], reply.client)):
                continue
            plain.add(reply.packet.blobs["clear"])
            counters = {
                n: torch.maximum(counters.get(n, reply.packet.tensors[n]), reply.packet.tensors[n])
                for n in form.counters
            }
        metrics: Metrics = {f"refused/{i}": text for i, text in enumerate(tally.refused)}
        metrics |= {"packets/encrypted": float(sum(map(len, groups))), "packets/clear": float(len(clear))}
        metrics |= self._spent(state, round)
        release = tally.release(round, terms.key_id, LEAST, packets_least=False)
        if len(release.groups) < len(groups) or plain.count < LEAST:
            metrics["contributors"] = f"fewer than {LEAST} contributors; the model stays as it is"
            return dataclasses.replace(state, synced=synced), metrics
        extra = Packet(counters, {}, {"clear": plain.result(), "protected": raw(state.protected)}).encode()
        kept = self._kept(state.number + 1, synced)
        encoded = Packet({}, {}, {"release": release.encode(), "extra": extra}).encode()
        return dataclasses.replace(
            state,
            releases=[*state.releases, stored(encoded)][-kept:],
            keys=[*state.keys, terms.key_id][-kept:],
            number=state.number + 1,
            synced=synced,
        ), metrics

    def _kept(self, number: int, synced: Mapping[str, int]) -> int:
        """How many of the last releases are kept, of so many: those that some client lacks, at most `history`."""
        lacking = max(1, number - min(synced.values()))
        return lacking if self.history is None else min(lacking, self.history)

    def _sums(self, round: int) -> bool:
        return replica.summing(self._method()).sums(round)

    def _spent(self, state: SelectiveState, round: int) -> Metrics:
        """What the rounds so far came to: clients fold in replicas, whose metrics nobody sees."""
        method = self._method()
        return method.spent(state.inner, round + 1) if isinstance(method, Spends) else {}

    def global_model(self, state: SelectiveState) -> Tree:
        """The initialisation: the server knows of no other model."""
        return self.inner().global_model(state.inner)

    def configure_evaluation(
        self, state: SelectiveState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """The sums that each client has not seen."""
        return self._news(state, clients if isinstance(self.inner(), EvaluatesClients) else [], None, clients)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges what the inner method judges, by the client's replica of its state."""
        method, (_, _, state) = self._method(), self._state(packet, client)
        assert isinstance(method, EvaluatesClients)  # nobody is asked else
        return method.client_evaluate(self._to_judge(packet, client, state), client)

    def _to_judge(self, packet: Packet, client: Client, state: Any) -> Packet:
        """What the inner method's server would have sent to be judged."""
        found = replica.evaluation_for(self._method(), state, client, _told(packet))
        assert found is not None  # nobody is asked else
        return found

    # -- clients

    def _worked(self, packet: Packet, client: Client, *, remembered: bool) -> tuple[Exchange, Form, Any, Packet]:
        """The replica's state and the inner method's summand, once a round; nothing in a round without a sum."""
        agreed, form, state = self._state(packet, client)
        client.memory[_NUMBER] = torch.tensor(int(packet.scalars["number"]))
        if not remembered and _REPLY in client.memory:
            replica.remember(client, state)
            counters = {n: client.memory[f"{_REPLY}:{n}"] for n in form.counters}
            summand = form.summand(client.memory[_REPLY], counters)
            del client.memory[_REPLY]
            return agreed, form, state, summand
        method = self._method()
        sent, summing = replica.packet_for(method, state, client, _told(packet)), replica.summing(method)
        reply = method.client_update(sent, client).cpu()
        replica.remember(client, summing.replied(state, Reply(client.id, reply, sent=sent)))
        if not summing.sums(client.round):
            return agreed, form, state, Packet()
        summand = summing.summand(state, sent, reply)
        if remembered:
            client.memory[_REPLY] = form.vector(summand)
            for name in form.counters:
                client.memory[f"{_REPLY}:{name}"] = summand.tensors[name]
        return agreed, form, state, summand

    def _state(self, packet: Packet, client: Client) -> tuple[Exchange, Form, Any]:
        """The agreement, and the client's replica of the state with all that is new."""
        method = self._method()
        first = replica.first_state(method, client.task, int(packet.scalars["seed"]))
        form, state = self._form(first), replica.recall_state(client, first)
        agreed = self._agreed(form, int(packet.scalars["contributors"]), str(packet.scalars["run"]))
        seen = int(client.memory[_NUMBER]) if _NUMBER in client.memory else 0
        names = [n for n in packet.blobs if n.startswith("release")]
        numbers = sorted(int(n.removeprefix("release")) for n in names)
        missing = [n for n in range(seen + 1, int(packet.scalars["number"]) + 1) if n not in numbers]
        if missing:
            raise RunError(
                f"client {client.id!r} missed release {missing[0]}, which is no longer kept; raise `history`,"
                " or leave it out: then as many are kept as are needed"
            )
        for number in numbers:
            if number > seen:
                both = decode(packet.blobs[f"release{number}"])
                release, extra = Release.decode(both.blobs["release"]), decode(both.blobs["extra"])
                if release.key_id != agreed.key_id():
                    raise RunError(
                        f"client {client.id!r}: release {number} is under key {release.key_id}, which was rotated away;"
                        " rotate keys between runs of this method"
                    )
                mean = self._mean(Sealer(agreed, client), form, release, extra)
                state = replica.summing(method).absorb(state, release.round, mean)
        return agreed, form, state

    def _mean(self, sealer: Sealer, form: Form, release: Release, extra: Packet) -> Packet:
        agreed = sealer.exchange
        packets = torch.zeros(agreed.layout.packets, agreed.layout.packet_size)
        _, clear = self.divided(stored(extra.blobs["protected"]), agreed)
        if clear:
            sums = torch.frombuffer(bytearray(extra.blobs["clear"]), dtype=torch.int32).view(len(clear), agreed.row)
            packets[clear] = agreed.fixed.mean(sums[:, :-2], sums[:, -2:-1]).float()
        for packet, mean in sealer.means(release):
            packets[packet] = mean
        return form.summand(agreed.layout.joined(packets), dict(extra.tensors))

    def _weight(self, client: Client) -> float:
        return weight_of(len(client.data.train), None if replica.uniform(self.inner()) else self.most_examples)

    # -- what both sides agree on

    def _method(self) -> Algorithm[Any]:
        """The method whose state clients carry on."""
        return replica.whole(self.inner())

    def _form(self, inner: Any) -> Form:
        return Form.of(replica.summing(self._method()).summand_layout(inner))

    def _agreed(self, form: Form, contributors: int, run: str) -> Exchange:
        shapes = form.shapes()
        size = self.encryption.size_of_packets(sum(t.numel() for t in shapes.values()))
        return Exchange(self.encryption, PacketLayout.of(shapes, size), contributors, run)

    def exchange_of(self, state: SelectiveState) -> Exchange:
        """What the server and its clients agreed on."""
        return self._agreed(self._form(state.inner), state.contributors, state.run)

    def divided(self, protected: Tensor, agreed: Exchange) -> tuple[list[list[int]], list[int]]:
        """Protected packets by position, and the packets in the clear."""
        mask = unpack_bits(raw(protected), agreed.layout.packets)
        return groups_of(mask.nonzero().flatten().tolist(), agreed.per_ciphertext()), (
            ~mask
        ).nonzero().flatten().tolist()

    def terms_of(self, agreed: Exchange, groups: Sequence[Sequence[int]]) -> Terms:
        """What messages of packets are held to, for these positions."""
        return agreed.terms(entries=len(groups), most=len(groups), packets=agreed.per_ciphertext(), bound=False)

    def _news(
        self, state: SelectiveState, cohort: Sequence[ClientId], round: int | None, clients: Sequence[ClientId]
    ) -> Iterator[tuple[ClientId, Packet]]:
        """What each of a cohort has to know, out of all clients."""
        levels = replica.levels_for(self._method(), state.inner, round, clients)
        first = state.number - len(state.releases) + 1
        common: dict[str, Scalar] = {
            "seed": state.seed,
            "run": state.run,
            "contributors": state.contributors,
            "number": state.number,
        }
        if round is not None:
            common["round"] = round
        for client in cohort:
            seen = state.synced.get(client, 0)
            blobs = {f"release{first + i}": raw(r) for i, r in enumerate(state.releases) if first + i > seen}
            own: dict[str, Scalar] = {"level": levels[client]} if client in levels else {}
            yield client, Packet({}, common | own, blobs | {"protected": raw(state.protected)})


def _told(packet: Packet) -> float | None:
    """The level that a client was told, of a method that deals levels out."""
    return float(packet.scalars["level"]) if "level" in packet.scalars else None
