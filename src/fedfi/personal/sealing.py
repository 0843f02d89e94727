"""The clients' side: what needs the secret key. The server's side (`tally`) does not import this file."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedfi.crypto import keys
from fedfi.crypto.identity import Identity
from fedfi.crypto.message import Message, Terms, encode
from fedfi.crypto.secret import SecretKey, simulated_key
from fedfi.errors import RunError
from fedfi.federation.client import Client
from fedfi.personal.encryption import Encryption, Exchange
from fedfi.personal.tally import Release

WEIGHT_BITS = 12
"""Weights are multiples of 2^-12, so that the denominators of means are exact."""


@functools.lru_cache(maxsize=64)
def _unlocked(folder: str, key_id: str, client: str) -> tuple[SecretKey, Identity]:
    path = Path(folder)
    return keys.unlock(path, client), keys.identity_of(path, client)


def secret_of(encryption: Encryption, client: Client) -> tuple[SecretKey, Identity | None]:
    """The secret key as this client has it, and its identity where keys are no simulation."""
    roster = encryption.roster()
    if roster is None or encryption.keys is None:
        return simulated_key(encryption.chosen(), client.seed), None
    return _unlocked(encryption.keys, roster.key_id, client.id)


class Sealer:
    """What one client does with packets in one round.

    Args:
        exchange: The agreement.
        client: Who.
    """

    def __init__(self, exchange: Exchange, client: Client) -> None:
        self.exchange, self.client = exchange, client
        self._secret, self._identity = secret_of(exchange.encryption, client)

    def message(
        self,
        terms: Terms,
        mask: Tensor,
        groups: Sequence[Sequence[int]],
        values: Tensor,
        weight: float,
        *,
        per: int = 1,
        every: bool = False,
    ) -> bytes:
        """The message that carries a client's packets.

        Args:
            terms: What was agreed.
            mask: Packets that the client shares, boolean `[P]`.
            groups: Packets of each position.
            values: All parameters `[size]`.
            weight: In (0, 1], a multiple of 2^-12.
            per: Packets that a payload has room for.
            every: Fill every position, also those of which the client shares nothing, and show an empty mask.
        """
        whole = self._encoded(self.exchange.layout.cut(values), mask, weight)
        indices = [i for i, g in enumerate(groups) if every or bool(mask[list(g)].any())]
        payloads = [self._sealed(whole, groups[i], per) for i in indices]
        shown = torch.zeros_like(mask) if every else mask
        return self.signed(Message(self.client.id, self.client.round, 0, shown, indices, payloads), terms)

    def signed(self, message: Message, terms: Terms) -> bytes:
        """A message's bytes."""
        return encode(message, terms, self._identity.sign if self._identity else None)

    def seal(self, values: Tensor) -> bytes:
        """A payload of whole numbers, int64 `[n]`."""
        if self.exchange.encryption.enabled:
            return self._secret.encrypt(values)
        return values.to(torch.int32).numpy().tobytes()

    def open(self, content: bytes) -> Tensor:
        """The whole numbers of a payload or sum, int64."""
        if self.exchange.encryption.enabled:
            return self._secret.decrypt(content)
        return torch.frombuffer(bytearray(content), dtype=torch.int32).to(torch.int64)

    def means(self, release: Release) -> Iterator[tuple[int, Tensor]]:
        """The weighted mean `[packet_size]`, float32, of each packet of a release that anybody contributed to.

        Raises:
            RunError: If a sum is not that of the contributors that the server names.
        """
        row, fixed, bits = self.exchange.row, self.exchange.fixed, self.exchange.check_bits
        for group, content, contributors in zip(release.groups, release.sums, release.contributors, strict=True):
            numbers = self.open(content)[: len(group) * row].view(len(group), row)
            for packet, line in zip(group, numbers, strict=True):
                expected = sum(self._check(bits, release.round, packet, c) for c in contributors)
                if int(line[-1]) != expected:
                    raise RunError(
                        f"client {self.client.id!r}: the sum of packet {packet} of round {release.round + 1} is not"
                        f" that of its {len(contributors)} contributors: one was dropped, doubled or exchanged"
                    )
                if int(line[-2]):
                    yield packet, fixed.mean(line[:-2], line[-2]).float()

    def _encoded(self, packets: Tensor, mask: Tensor, weight: float) -> Tensor:
        """Every packet that the client shares as whole numbers, with its weight; zeros for the others `[P, row]`."""
        lines = torch.zeros(len(packets), self.exchange.row, dtype=torch.int64)
        lines[mask, :-2] = self.exchange.fixed.encode(packets[mask], weight)
        lines[mask, -2] = self.exchange.fixed.weight(weight)
        return lines

    def _sealed(self, whole: Tensor, group: Sequence[int], per: int) -> bytes:
        lines = whole.new_zeros(per, self.exchange.row)  # the last group of all may be smaller
        bits, round = self.exchange.check_bits, self.client.round
        if group:
            lines[: len(group)] = whole[list(group)]
            lines[: len(group), -1] = torch.tensor([self._check(bits, round, p, self.client.id) for p in group])
        return self.seal(lines.reshape(-1))

    def _check(self, bits: int, round: int, packet: int, sender: str) -> int:
        return self._secret.check_value(bits, self.exchange.run_id, round, packet, sender)


def weight_of(examples: int, cap: int | None) -> float:
    """A client's weight in (0, 1]: its share of `cap` examples, a multiple of 2^-12; 1 where there is no cap."""
    if cap is None:
        return 1.0
    return max(1, round(min(examples, cap) / cap * (1 << WEIGHT_BITS))) / (1 << WEIGHT_BITS)


def padded(values: Tensor, size: int) -> Tensor:
    """Values `[n]` with zeros after them `[size]`."""
    return torch.cat([values, values.new_zeros(size - len(values))])
