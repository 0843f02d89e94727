"""FedFIHE: Fisher-guided, packet-wise, vote-bounded encrypted sharing (Yao, Liu, Li et al.).

The paper itself was not at hand; what is built is what its authors' institutions say of it, and where they leave a
choice open, it is an option here.

| described | here |
|---|---|
| Fisher information of each parameter, on the client's data | `scores.fisher_vector`, `fisher_samples` |
| parameters partitioned into shared and local | `share`, `partition`, `sharing`, `threshold` |
| fixed-size packets, a binary mask | `encryption.packet_size`, `voting.scores_of_packets` |
| top-kappa by score | `voting.top_packets`, kappa = `sharing` of the packets |
| mask voting: positions that enough clients chose | `voting.consensus`, `quorum`, `least_voters`, `budget` |
| aggregation of those in ciphertext, broadcast | `tally.Tally`; clients decrypt in `sealing.Sealer.means` |
| each client personalises its own model | whole model trained; `take`, `mixing` |

Deviations and choices, each for a reason:

- The mask marks what is uploaded, the top kappa. It is said to mark every packet with selected parameters, but a packet
  that wins by votes of those who do not upload it has too few contributors, and a larger mask tells more of the data.
- Whole packets travel, with the unselected parameters in them: a packet is the unit of ciphertexts and of voting.
- `share = "high"` follows the description; FedDPA, a relative, keeps high information local, hence `"low"`.
- At least three voters a packet: with two, each learns the other's values by subtracting its own.
- Weights are inside the ciphertext beside each packet, and the sum is divided after decryption: counts stay hidden.
- A keyed check value beside each packet shows clients a sum that was tampered with.
- `phases = "one"`, as published, uploads before the vote: what loses it was encrypted in vain, and one ciphertext
  holds one packet, since what shares a ciphertext is decrypted together. `phases = "two"` votes first; then only what
  was agreed on is encrypted, densely, whatever the size of packets. See docs/decisions/0008-rounds-with-a-vote.md.
- Masks tell a server something of the data. `hold` keeps a mask for some rounds, `swap` exchanges packets at random,
  `votes = "encrypted"` shows the server neither masks nor agreement (it needs two phases, and `spare` voters more).
- `consensus = "union"` sums whatever anybody uploads, down to one contributor: the scheme that voting improves on,
  for comparison only.
- A client that was away gets the last `history` releases that it has not seen.
- Parameters without gradient and buffers stay local.
- The server holds no trained model: `model.safetensors` is the initialisation that clients started from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, final

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.crypto.layout import PacketLayout
from fedfi.crypto.message import Gate, Message, Terms
from fedfi.crypto.summing import CipherSum, PlainSum
from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, Algorithm, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.evaluation import evaluate_workbench
from fedfi.federation.packet import Layout, Packet, Scalar, Tree
from fedfi.federation.sampling import round_size
from fedfi.federation.task import Task
from fedfi.federation.training import train_locally
from fedfi.federation.workbench import Workbench, fresh_workbench
from fedfi.numerics.selection import pack_bits, unpack_bits
from fedfi.personal import voting
from fedfi.personal.encryption import ENCRYPTED, Encryption, Exchange, groups_of
from fedfi.personal.fedfihestate import FedFIHEState
from fedfi.personal.pieces import Snapshot, recall
from fedfi.personal.scores import fisher_vector
from fedfi.personal.sealing import Sealer, padded, weight_of
from fedfi.personal.tally import Release, Tally, counted, raw, refusing, refusing_others, stored, tallied

_FIRST = "first:"


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedFIHE(Algorithm[FedFIHEState]):
    """Clients share the packets that matter by Fisher information; those with enough votes are summed encrypted."""

    sharing: Annotated[float, Field(gt=0, le=1, description="share of packets that a client uploads at most")] = 0.2
    share: Annotated[Literal["high", "low"], Field(description="whether high or low Fisher information is shared")] = (
        "high"
    )
    partition: Annotated[
        Literal["budget", "threshold"],
        Field(description="shared parameters: the best `sharing` of all, or by `threshold` times the mean"),
    ] = "budget"
    threshold: Annotated[float, Field(gt=0, description="multiple of the mean information, for that")] = 1.0
    fisher_samples: Annotated[
        Literal["batch", "example"], Field(description="squares of batch or example gradients")
    ] = "batch"
    phases: Annotated[Literal["one", "two"], Field(description="upload and vote at once, or vote first")] = "one"
    consensus: Annotated[
        Literal["vote", "union"], Field(description="packets with enough votes, or any (unsafe, for comparison)")
    ] = "vote"
    quorum: Annotated[float, Field(ge=0, le=1, description="share of the voters that must want a packet")] = 0.25
    least_voters: Annotated[int, Field(ge=3, description="and how many must at least")] = 3
    budget: Annotated[float | None, Field(gt=0, le=1, description="most packets agreed on; none: as `sharing`")] = None
    votes: Annotated[Literal["plain", "encrypted"], Field(description="whether the server sees masks")] = "plain"
    spare: Annotated[int, Field(ge=0, description="voters more, so that so many may drop out (encrypted votes)")] = 1
    hold: Annotated[int, Field(ge=1, description="rounds that a client keeps its mask for")] = 1
    swap: Annotated[float, Field(ge=0, le=1, description="probability that a marked packet is swapped at random")] = 0.0
    take: Annotated[
        Literal["selectors", "all"], Field(description="who takes a mean over: who voted for it, or all")
    ] = "selectors"
    mixing: Annotated[float, Field(gt=0, le=1, description="weight of the mean against the client's own value")] = 1.0
    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"
    most_examples: Annotated[int, Field(ge=1, description="examples from which on a client's weight grows no more")] = (
        1024
    )
    history: Annotated[int, Field(ge=1, description="releases kept for clients that were away")] = 10
    encryption: Annotated[Encryption, Field(description="scheme, keys, packets")] = Field(default_factory=Encryption)

    central: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]] = ENCRYPTED
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-published": {"phases": "one", "share": "high", "votes": "plain"},
    }

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.votes == "encrypted" and (self.phases == "one" or self.consensus == "union"):
            raise ValueError("votes = 'encrypted' needs phases = 'two' and consensus = 'vote'")
        return self

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """Keys that some lack, and too few clients for anything to be shared."""
        cohort, needed = round_size(len(clients), self.participation, self.clients_per_round), self._rule(1).least
        notes = self.encryption.notes(clients)
        if self.consensus == "union" or cohort >= needed:
            return notes
        given = f"least_voters = {self.least_voters}" + (f" and spare = {self.spare}" if self.votes != "plain" else "")
        few = f"a packet needs {needed} voters, and {cohort} clients take part in a round"
        return [*notes, f"{given}: {few}, so nothing will ever be shared"]

    def init(self, task: Task, rng: torch.Generator) -> FedFIHEState:
        """A freshly initialised model, from which all clients start."""
        bench = fresh_workbench(task, rng)
        self.encryption.strangers(list(task.data.clients))
        state = FedFIHEState(
            model={n: t.clone() for n, t in bench.tree().items()},
            trained=bench.layout.names,
            run=f"{int(torch.randint(2**62, (), generator=rng)):016x}",
            contributors=round_size(len(task.data.clients), self.participation, self.clients_per_round),
        )
        self._agreed(_shapes(state), state.contributors, state.run).fixed.encode(torch.zeros(1))
        return state

    # -- the exchange before the exchange: votes (two phases)

    def configure_negotiation(
        self, state: FedFIHEState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Asks the sampled clients to train and to vote, where votes come first."""
        if self.phases == "two":
            for client in self.sample(clients, rng):
                yield client, self._news(state, client, round)

    def negotiation_layout(self, state: FedFIHEState, packet: Packet) -> Layout:
        """A message with a mask, or with encrypted votes."""
        agreed = self.exchange_of(state)
        gate = Gate(self.vote_terms(agreed), round=_round(packet), phase=1, verify=agreed.verify())
        return Layout(scalars={"loss": float}, most_bytes={"message": gate.terms.most_bytes()}, also=refusing(gate))

    def client_negotiate(self, packet: Packet, client: Client) -> Packet:
        """Takes in what is new, trains, and votes."""
        loss, mask = self._work(packet, client)
        sealer = Sealer(self._at(packet, client.workbench), client)
        terms: Terms = self.vote_terms(sealer.exchange)
        payloads: list[bytes] = []
        shown = mask
        if self.votes == "encrypted":
            shown = torch.zeros_like(mask)
            parts = mask.to(torch.int64).split(self._vote_slots())
            payloads = [sealer.seal(padded(part, self._vote_slots())) for part in parts]
        message = Message(client.id, client.round, 1, shown, range(len(payloads)), payloads)
        return Packet({}, {"loss": loss}, {"message": sealer.signed(message, terms)})

    def negotiated(
        self, state: FedFIHEState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedFIHEState, Metrics]:
        """Counts votes, or adds up encrypted ones."""
        if self.phases == "one":
            return state, {}
        agreed = self.exchange_of(state)
        terms = self.vote_terms(agreed)
        gate = Gate(terms, round=round, phase=1, verify=agreed.verify())
        masks: dict[str, Tensor] = {}
        sums = [self._empty() for _ in range(terms.entries)]
        loss, count, synced, metrics = 0.0, 0, dict(state.synced), Metrics()
        for reply in replies:
            message = gate.open(reply.packet.blobs["message"], reply.client)
            loss, count = loss + float(reply.packet.scalars["loss"]), count + 1
            synced[reply.client] = int(reply.sent.scalars["number"])
            try:
                for payload in message.payloads:  # a client's votes count together or not at all
                    self._empty().add(payload)
            except InputError as error:
                metrics[f"refused/{len(metrics)}"] = f"{reply.client!r}, votes: {error}"
                continue
            for total, payload in zip(sums, message.payloads, strict=True):
                total.add(payload)
            masks[reply.client] = stored(pack_bits(message.mask))
        votes = [stored(s.result()) for s in sums] if masks else []
        metrics |= state.lost(terms.key_id, synced)
        state = dataclasses.replace(state, masks=masks, votes=votes, voters=len(masks), synced=synced)
        return state, metrics | {"train/loss": loss / count}

    # -- the exchange of packets

    def configure(
        self, state: FedFIHEState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """One phase: what is new, to the sampled clients. Two: what was agreed on, to those that voted."""
        if self.phases == "one":
            for client in self.sample(clients, rng):
                yield client, self._news(state, client, round)
            return
        blobs = {f"votes{i}": raw(v) for i, v in enumerate(state.votes)}
        if self.votes == "plain":
            blobs["consensus"] = pack_bits(self._agreement(state, round))
        for client in state.masks:
            yield client, Packet({}, self._scalars(state, round), blobs)

    def reply_layout(self, state: FedFIHEState, packet: Packet) -> Layout:
        """A message of packets, exactly as agreed."""
        agreed = self.exchange_of(state)
        groups = self._groups(state, agreed, _round(packet))
        gate = Gate(self.terms_of(agreed, groups), round=_round(packet), phase=0, verify=agreed.verify())
        scalars: dict[str, type[Scalar]] = {"loss": float} if self.phases == "one" else {}
        every = self.votes == "encrypted"
        also = refusing(gate) if self.phases == "one" else refusing_others(gate, groups, every=every)
        return Layout(scalars=scalars, most_bytes={"message": gate.terms.most_bytes()}, also=also)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """One phase: takes in, trains, encrypts its best packets. Two: encrypts those that were agreed on."""
        scalars: dict[str, float] = {}
        if self.phases == "one":
            scalars["loss"], mask = self._work(packet, client)
        else:
            mask = client.memory["mask"]
            kept = recall(client, "model")
            assert kept is not None  # it voted
            kept.put(client.workbench)
        sealer = Sealer(self._at(packet, client.workbench), client)
        groups = [[i] for i in range(sealer.exchange.layout.packets)]
        if self.phases == "two":
            agreed = self._found(packet, sealer)
            mask = mask & agreed
            groups = self.dense(sealer.exchange, agreed)
        terms = self.terms_of(sealer.exchange, groups)
        vector = client.workbench.vector.detach().cpu()
        sealer.exchange.fixed.refuse_cut(sealer.exchange.layout.cut(vector)[mask])
        cap = self.most_examples if self.weights == "examples" else None
        message = sealer.message(
            terms,
            mask,
            groups,
            vector,
            weight_of(len(client.data.train), cap),
            per=self._per(sealer.exchange),
            every=self.votes == "encrypted",
        )
        return Packet({}, scalars, {"message": message})

    def aggregate(
        self, state: FedFIHEState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedFIHEState, Metrics]:
        """Votes, where they come with the packets; sums what was agreed on; writes the release."""
        agreed = self.exchange_of(state)
        groups = self._groups(state, agreed, round)
        terms = self.terms_of(agreed, groups)
        gate = Gate(terms, round=round, phase=0, verify=agreed.verify())
        messages, loss, synced = [], 0.0, dict(state.synced)
        for reply in replies:  # all masks first: what does not win is never loaded
            messages.append(gate.open(reply.packet.blobs["message"], reply.client))
            if self.phases == "one":
                loss += float(reply.packet.scalars["loss"])
                synced[reply.client] = int(reply.sent.scalars["number"])
        tally, wanted, metrics = Tally(agreed, groups), None, Metrics()
        if self.phases == "one":
            votes = counted([m.mask for m in messages], agreed.layout.packets)
            wanted = self._winners(agreed, votes, len(messages), round)
            metrics["train/loss"] = loss / len(messages)
            metrics["packets/wanted"] = float((votes > 0).sum())
            metrics["packets/agreed"] = float(wanted.sum())
        elif self.votes == "plain":
            metrics["packets/agreed"] = float(sum(map(len, groups)))
        for message in messages:
            tally.add(message, wanted)
        for number, text in enumerate(tally.refused):
            metrics[f"refused/{number}"] = text
        metrics |= state.lost(terms.key_id, synced)
        release = self._release(state, tally, terms, round)
        state = dataclasses.replace(state, tallied=self._tallied(state, agreed.layout.packets, messages, release))
        if self.votes == "plain":  # else only members know which packets lie where, and how many
            metrics["packets/released"] = float(sum(map(len, release.groups)))
        metrics["ciphertexts/released"] = float(len(release.sums))
        if not release.sums:
            metrics["consensus"] = "nothing had enough votes and contributors; clients keep what they have"
            return dataclasses.replace(state, synced=synced, masks={}, votes=[], voters=0), metrics
        number = state.number + 1
        encoded = stored(dataclasses.replace(release, number=number).encode())
        releases, keys = [*state.releases, encoded][-self.history :], [*state.keys, terms.key_id][-self.history :]
        state = dataclasses.replace(state, releases=releases, keys=keys, number=number, synced=synced)
        return dataclasses.replace(state, masks={}, votes=[], voters=0), metrics

    def global_model(self, state: FedFIHEState) -> Tree:
        """The initialisation: the server knows of no other model."""
        return state.model

    def configure_evaluation(
        self, state: FedFIHEState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """What each client has not taken in yet."""
        return ((client, self._news(state, client)) for client in clients)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges the personal model with what is new, on the client's own test examples."""
        self._take_in(packet, client)
        return evaluate_workbench(client)

    # -- clients

    def _work(self, packet: Packet, client: Client) -> tuple[float, Tensor]:
        """Takes in what is new, trains the whole model, remembers it, and selects packets: loss and mask `[P]`."""
        number = self._take_in(packet, client)
        loss = train_locally(client).loss
        Snapshot.of(client.workbench).keep(client, "model")
        client.memory["number"] = torch.tensor(number)
        mask = self._mask(packet, client)
        client.memory["mask"] = mask
        client.memory["used"] = torch.tensor(client.round)
        return loss, mask

    def _mask(self, packet: Packet, client: Client) -> Tensor:
        if "mask" in client.memory and int(client.memory["made"]) // self.hold == client.round // self.hold:
            return client.memory["mask"].clone()
        layout = self._at(packet, client.workbench).layout
        scores = voting.scores_of_packets(
            fisher_vector(client, self.fisher_samples).cpu(),
            self.share,
            layout.packet_size,
            ratio=self.sharing if self.partition == "budget" else None,
            threshold=self.threshold if self.partition == "threshold" else None,
        )
        mask = voting.top_packets(scores, voting.budget_of(self.sharing, layout.packets))
        client.memory["made"] = torch.tensor(client.round)
        return voting.exchanged(mask, self.swap, client.rng("swap")) if self.swap else mask

    def _take_in(self, packet: Packet, client: Client) -> int:
        """Puts the client's model on the workbench, with every release that it has not seen; the newest's number."""
        kept = recall(client, "model")
        if kept is None:
            client.workbench.load({n.removeprefix(_FIRST): t for n, t in packet.tensors.items()})
        else:
            kept.put(client.workbench)
        seen = int(client.memory["number"]) if "number" in client.memory else 0
        agreed = self._at(packet, client.workbench)
        sealer = Sealer(agreed, client) if packet.blobs else None
        for name in sorted(packet.blobs, key=lambda n: int(n.removeprefix("release"))):
            release = Release.decode(packet.blobs[name])
            if release.number > seen and sealer:
                self._apply(release, sealer, client)
                seen = release.number
        return seen

    def _apply(self, release: Release, sealer: Sealer, client: Client) -> None:
        if self.votes == "encrypted":
            votes = self._opened(sealer, release.votes)
            groups = self.dense(sealer.exchange, self._winners(sealer.exchange, votes, release.voters, release.round))
            release = dataclasses.replace(release, groups=groups)
        own = torch.zeros(sealer.exchange.layout.packets, dtype=torch.bool)
        if "used" in client.memory and int(client.memory["used"]) == release.round:
            own = client.memory["mask"]
        vector = client.workbench.vector
        packets = sealer.exchange.layout.cut(vector.detach().cpu()).clone()
        for packet, mean in sealer.means(release):
            if self.take == "all" or bool(own[packet]):
                packets[packet] = mean if self.mixing == 1 else packets[packet].lerp(mean, self.mixing)
        with torch.no_grad():
            vector.copy_(sealer.exchange.layout.joined(packets))

    def _found(self, packet: Packet, sealer: Sealer) -> Tensor:
        """The packets that were agreed on, as the client learns it in the second phase."""
        if self.votes == "plain":
            return unpack_bits(packet.blobs["consensus"], sealer.exchange.layout.packets)
        votes = self._opened(sealer, [packet.blobs[f"votes{i}"] for i in range(len(packet.blobs))])
        return self._winners(sealer.exchange, votes, int(packet.scalars["voters"]), _round(packet))

    def _opened(self, sealer: Sealer, votes: Sequence[bytes]) -> Tensor:
        parts = [sealer.open(v)[: self._vote_slots()] for v in votes]
        return torch.cat(parts)[: sealer.exchange.layout.packets]

    # -- what both sides agree on

    def _agreed(self, layout: Mapping[str, Tensor], contributors: int, run: str) -> Exchange:
        size = self.encryption.size_of_packets(sum(t.numel() for t in layout.values()))
        return Exchange(self.encryption, PacketLayout.of(layout, size), contributors, run)

    def exchange_of(self, state: FedFIHEState) -> Exchange:
        """What the server and its clients agreed on."""
        return self._agreed(_shapes(state), state.contributors, state.run)

    def _at(self, packet: Packet, bench: Workbench) -> Exchange:
        return self._agreed(bench.parameters(), int(packet.scalars["contributors"]), str(packet.scalars["run"]))

    def _winners(self, agreed: Exchange, votes: Tensor, voters: int, round: int) -> Tensor:
        packets = agreed.layout.packets
        if self.consensus == "union":
            return votes > 0
        return voting.consensus(votes, voters, self._rule(packets), agreed.run_id, round)

    def _rule(self, packets: int) -> voting.Rule:
        least = self.least_voters + (self.spare if self.votes == "encrypted" else 0)
        return voting.Rule(self.quorum, least, voting.budget_of(self.budget or self.sharing, packets))

    def _agreement(self, state: FedFIHEState, round: int) -> Tensor:
        agreed = self.exchange_of(state)
        masks = [unpack_bits(raw(m), agreed.layout.packets) for m in state.masks.values()]
        return self._winners(agreed, counted(masks, agreed.layout.packets), state.voters, round)

    def _per(self, agreed: Exchange) -> int:
        """Packets a payload: what shares a ciphertext is decrypted together, so only after a vote more than one."""
        return agreed.per_ciphertext() if self.phases == "two" else 1

    def dense(self, agreed: Exchange, winners: Tensor) -> list[list[int]]:
        """What was agreed on, by position."""
        groups = groups_of(winners.nonzero().flatten().tolist(), self._per(agreed))
        if self.votes == "encrypted":  # always as many as the budget may fill, so that their number tells nothing
            budget = voting.budget_of(self.budget or self.sharing, agreed.layout.packets)
            groups += [[] for _ in range(-(-budget // self._per(agreed)) - len(groups))]
        return groups

    def _groups(self, state: FedFIHEState, agreed: Exchange, round: int) -> list[list[int]]:
        """Packets of each position, as the server knows them."""
        if self.phases == "one":
            return [[i] for i in range(agreed.layout.packets)]
        if self.votes == "encrypted":
            return self.dense(agreed, torch.zeros(agreed.layout.packets, dtype=torch.bool))
        return self.dense(agreed, self._agreement(state, round))

    def terms_of(self, agreed: Exchange, groups: Sequence[Sequence[int]]) -> Terms:
        """What messages of packets are held to, for these positions."""
        one = self.phases == "one"
        most = voting.budget_of(self.sharing, agreed.layout.packets) if one else len(groups)
        return agreed.terms(entries=len(groups), most=most, packets=self._per(agreed), bound=one)

    def _vote_slots(self) -> int:
        return self.encryption.chosen().slots

    def vote_terms(self, agreed: Exchange) -> Terms:
        """What votes are held to."""
        payloads = -(-agreed.layout.packets // self._vote_slots()) if self.votes == "encrypted" else 0
        terms = agreed.terms(entries=payloads, most=payloads, packets=1, bound=False)
        if not self.encryption.enabled:
            terms = dataclasses.replace(terms, payload_bytes=4 * self._vote_slots())
        return terms

    # -- the server

    def _news(self, state: FedFIHEState, client: ClientId, round: int | None = None) -> Packet:
        """The releases that a client has not taken in; a newcomer gets the initialisation."""
        tensors = {} if client in state.synced else {_FIRST + n: t for n, t in state.model.items()}
        blobs = {f"release{number}": raw(r) for number, r in state.new_to(client, self.exchange_of(state).key_id())}
        return Packet(tensors, self._scalars(state, round), blobs)

    def _scalars(self, state: FedFIHEState, round: int | None) -> dict[str, Scalar]:
        scalars: dict[str, Scalar] = {"run": state.run, "contributors": state.contributors, "number": state.number}
        return scalars | {"voters": state.voters} | ({} if round is None else {"round": round})

    def exhibits(self, state: FedFIHEState) -> Mapping[str, Packet]:
        """The votes of the newest round, where the server sees them."""
        return {"votes": Packet(state.tallied)} if state.tallied else {}

    def _tallied(self, state: FedFIHEState, packets: int, messages: Sequence[Message], release: Release) -> Tree:
        masks = [unpack_bits(raw(m), packets) for m in state.masks.values()] or [m.mask for m in messages]
        needed = 1 if self.consensus == "union" else self._rule(packets).needed(len(masks))
        return {} if self.votes == "encrypted" else tallied(masks, packets, needed, release)

    def _release(self, state: FedFIHEState, tally: Tally, terms: Terms, round: int) -> Release:
        if self.votes == "encrypted":
            least = max(1, state.voters - self.spare)
            found = tally.release(round, terms.key_id, least, packets_least=False)
            if len(found.sums) < len(tally.groups):  # all or nothing: only members know which packets lie where
                found = dataclasses.replace(found, groups=[], sums=[], contributors=[])
            return dataclasses.replace(found, votes=[raw(v) for v in state.votes], voters=state.voters)
        return tally.release(round, terms.key_id, 1 if self.consensus == "union" else self.least_voters)

    def _empty(self) -> CipherSum | PlainSum:
        return CipherSum(self.encryption.chosen()) if self.encryption.enabled else PlainSum()


def _shapes(state: FedFIHEState) -> Tree:
    return {n: state.model[n] for n in state.trained}


def _round(packet: Packet) -> int:
    return int(packet.scalars["round"])
