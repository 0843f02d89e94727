"""The server's side: it opens messages, adds payloads, writes releases. It knows no secret and has no place for one.

A release is what a round came to, as clients get it: sums by position, who contributed to each, and which packets
each position holds. It is a packet of blobs, so that it passes through checkpoints and wires as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfi.crypto.message import Gate, Message, MessageError
from fedfi.crypto.summing import CipherSum, PlainSum, Sum
from fedfi.errors import InputError
from fedfi.federation.exhibits import pooled
from fedfi.federation.packet import Packet, PacketError, Scalar, Tree, decode
from fedfi.personal.encryption import Exchange

_MOST_BARS = 512


@dataclass(frozen=True)
class Release:
    """The sums of one exchange.

    Attributes:
        round: When.
        key_id: Under which key.
        groups: Packets that each position holds.
        sums: The sum at each position.
        contributors: Who is in the sum at each position.
        number: Counts the releases of a run from 1.
        votes: Encrypted sums of votes, where clients have to find the groups themselves.
        voters: How many voted.
    """

    round: int
    key_id: str
    groups: Sequence[Sequence[int]]
    sums: Sequence[bytes]
    contributors: Sequence[Sequence[str]]
    number: int = 0
    votes: Sequence[bytes] = ()
    voters: int = 0

    def encode(self) -> bytes:
        """As bytes."""
        table = {"groups": self.groups, "contributors": self.contributors, "voters": self.voters}
        scalars: dict[str, Scalar] = {
            "round": self.round,
            "key_id": self.key_id,
            "number": self.number,
            "table": json.dumps(table),
        }
        blobs = {f"sum{i}": s for i, s in enumerate(self.sums)} | {f"votes{i}": s for i, s in enumerate(self.votes)}
        return Packet({}, scalars, blobs).encode()

    @staticmethod
    def decode(content: bytes) -> Release:
        """Out of bytes.

        Raises:
            PacketError: If they are no release.
        """
        packet = decode(content)
        try:
            table = json.loads(str(packet.scalars["table"]))
            groups = table["groups"]
            return Release(
                round=int(packet.scalars["round"]),
                key_id=str(packet.scalars["key_id"]),
                number=int(packet.scalars["number"]),
                groups=groups,
                sums=[packet.blobs[f"sum{i}"] for i in range(len(groups))],
                contributors=table["contributors"],
                votes=[packet.blobs[f"votes{i}"] for i in range(sum(n.startswith("votes") for n in packet.blobs))],
                voters=int(table["voters"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PacketError(f"not a release: {error}") from None


class Tally:
    """Adds up what clients send, position by position.

    Args:
        exchange: The agreement.
        groups: Packets of each position.
    """

    def __init__(self, exchange: Exchange, groups: Sequence[Sequence[int]]) -> None:
        self._exchange, self.groups = exchange, groups
        self._parameters = exchange.encryption.chosen()
        self._sums: dict[int, Sum] = {}
        self.contributors: dict[int, list[str]] = {}
        self.packets: dict[int, int] = {}
        self.refused: list[str] = []

    def add(self, message: Message, wanted: Tensor | None = None) -> None:
        """Adds a message's payloads.

        Args:
            message: Checked.
            wanted: Positions that are of interest, boolean; payloads at others are not even looked at.
        """
        for index, payload in zip(message.indices, message.payloads, strict=True):
            if wanted is not None and not bool(wanted[index]):
                continue
            if (term := self._read(message.sender, index, payload)) is not None:
                self._take(message, index, term)

    def add_whole(self, message: Message) -> bool:
        """Adds the payloads of all positions, or none of them, so that every position has the same contributors.

        Where one mean is divided by another, as updates by how many hold an entry, both must be of the same clients.

        Args:
            message: Checked.

        Returns:
            Whether they were added; if not, `refused` says why.
        """
        if list(message.indices) != list(range(len(self.groups))):
            held = f"{len(message.indices)} of {len(self.groups)} payloads"
            self.refused.append(f"{message.sender!r}: {held}, expected all of them")
            return False
        terms = []
        for index, payload in enumerate(message.payloads):
            if (term := self._read(message.sender, index, payload)) is None:
                return False
            terms.append(term)
        for index, term in enumerate(terms):
            self._take(message, index, term)
        return True

    def _read(self, sender: str, index: int, payload: bytes) -> Any:
        """A payload as a sum takes it; None for one that its sender made wrongly: the others' sum stands."""
        if index not in self._sums:
            self._sums[index] = self._empty()
        try:
            return self._sums[index].read(payload)
        except InputError as error:
            self.refused.append(f"{sender!r}, payload {index}: {error}")
            return None

    def _take(self, message: Message, index: int, term: Any) -> None:
        self._sums[index].take(term)
        self.contributors.setdefault(index, []).append(message.sender)
        for packet in self.groups[index]:
            if bool(message.mask[packet]):
                self.packets[packet] = self.packets.get(packet, 0) + 1

    def release(self, round: int, key_id: str, least: int, *, packets_least: bool = True) -> Release:
        """What was added up, but only positions at which no packet has fewer than `least` contributors.

        Args:
            round: When.
            key_id: Under which key.
            least: m_min.
            packets_least: Count contributors packet by packet, by their masks; else by position.
        """
        kept = []
        for index in sorted(self.contributors):
            if packets_least:
                count = min(self.packets.get(p, 0) for p in self.groups[index])
            else:
                count = len(self.contributors[index])
            if count >= least:
                kept.append(index)
        return Release(
            round=round,
            key_id=key_id,
            groups=[list(self.groups[i]) for i in kept],
            sums=[self._sums[i].result() for i in kept],
            contributors=[self.contributors[i] for i in kept],
        )

    def _empty(self) -> Sum:
        return CipherSum(self._parameters) if self._exchange.encryption.enabled else PlainSum()


def refusing(gate: Gate) -> Callable[[Packet, str], None]:
    """A check for a `Layout` that refuses a reply whose message is not as agreed."""

    def check(packet: Packet, sender: str) -> None:
        try:
            gate.check(packet.blobs["message"], sender)
        except MessageError as error:
            raise PacketError(f"client {sender!r}: {error}") from None

    return check


def refusing_others(gate: Gate, groups: Sequence[Sequence[int]], *, every: bool) -> Callable[[Packet, str], None]:
    """A check that what arrives in a second phase is what was agreed on in the first.

    Args:
        gate: What messages are held to.
        groups: Packets of each position, as agreed.
        every: Whether all positions are due, or those of which the sender marks a packet.
    """
    as_agreed = refusing(gate)

    def check(packet: Packet, sender: str) -> None:
        as_agreed(packet, sender)
        message = gate.check(packet.blobs["message"], sender)
        marked = {p for g in groups for p in g if bool(message.mask[p])}
        due = [i for i, g in enumerate(groups) if every or marked & set(g)]
        if int(message.mask.sum()) != len(marked) or list(message.indices) != due:
            raise PacketError(f"client {sender!r}: packets {list(message.indices)} are not those agreed on: {due}")

    return check


def counted(masks: Sequence[Tensor], packets: int) -> Tensor:
    """Votes of each packet, int64 `[P]`."""
    return torch.stack([m.to(torch.int64) for m in masks]).sum(0) if masks else torch.zeros(packets, dtype=torch.int64)


def tallied(masks: Sequence[Tensor], packets: int, needed: int, release: Release) -> Tree:
    """What a page shows of a vote; of many packets, neighbours are taken together, so that at most 512 bars remain.

    Args:
        masks: Of those that voted, boolean `[P]` each.
        packets: P.
        needed: Votes that a packet needs.
        release: What became of it.
    """
    released = torch.zeros(packets, dtype=torch.int64)
    released[[p for group in release.groups for p in group]] = 1
    return {
        "votes": pooled(counted(masks, packets), _MOST_BARS, how="max"),
        "released": pooled(released, _MOST_BARS, how="max"),
        "voters": torch.tensor(len(masks)),
        "needed": torch.tensor(needed),
        "packets": torch.tensor(packets),
    }


def stored(content: bytes) -> Tensor:
    """Bytes as uint8 `[n]`, which a checkpoint can hold."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)


def raw(content: Tensor) -> bytes:
    """The bytes again."""
    found: bytes = content.numpy().tobytes()
    return found
