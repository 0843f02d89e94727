"""What both sides agree on before anything is encrypted: scheme, keys, packets, fixed point, and who may be added up.

Nothing here knows a secret; the server's side (`tally`) builds on it, and so does the clients' (`sealing`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from fedfi.crypto.fixedpoint import FixedPoint
from fedfi.crypto.layout import PacketLayout
from fedfi.crypto.message import Terms, Verify
from fedfi.crypto.parameters import Parameters, parameters
from fedfi.crypto.roster import Roster
from fedfi.errors import InputError, some
from fedfi.personal.voting import LEAST

SLOTS = 2
"""Values of a packet beside its parameters: the contributor's weight, and a keyed check value."""

ENCRYPTED = {
    "encrypted": "it is encrypted already (nearest valid: without encryption around it)",
    "private": "what it sends is encrypted, and can be neither clipped nor perturbed any more (nearest valid:"
    " encryption around Private(algorithm=FedAvg(weights='uniform'), where='client'))",
}
"""Why no wrapper may stand around a method that encrypts."""

_SIMULATED = hashlib.blake2b(b"fedfi simulated", digest_size=8).hexdigest()
_USUAL_PACKETS = 64
_NAMED = 5


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Encryption:
    """Table `encryption` of a method that sends packets of parameters."""

    enabled: Annotated[bool, Field(description="false: the same whole numbers in the clear, for research")] = True
    parameters: Annotated[Literal["bfv-4096", "ckks-4096"], Field(description="scheme and size")] = "bfv-4096"
    keys: Annotated[
        str | None,
        Field(description="folder of `fedfi keys`; none: a key made from the run's seed, which hides nothing from it"),
    ] = None
    packet_size: Annotated[
        int | None,
        Field(
            ge=1, description="parameters a packet; none: a full ciphertext, but at least 64 packets if there can be"
        ),
    ] = None
    clip: Annotated[float, Field(gt=0, description="R: values are cut to [-R, R]")] = 8.0
    fraction_bits: Annotated[
        int | None, Field(ge=1, description="binary digits after the point; none: as many as cannot overflow")
    ] = None

    def chosen(self) -> Parameters:
        """The parameter set."""
        return parameters(self.parameters)

    def roster(self) -> Roster | None:
        """The public half of the key folder, as it is now; None where keys are simulated.

        Raises:
            InputError: If the folder holds keys of other parameters.
        """
        if self.keys is None or not self.enabled:
            return None
        roster = Roster.read(Path(self.keys))
        if roster.parameters != self.chosen():
            raise InputError(
                f"encryption.parameters = {self.parameters!r}: the keys in {self.keys} are of"
                f" {roster.parameters.name!r} (nearest valid: {roster.parameters.name!r})"
            )
        return roster

    def strangers(self, clients: Sequence[str]) -> list[str]:
        """Clients that are no members of the key folder.

        Raises:
            InputError: If so few are members that nothing could ever be added up.
        """
        if (roster := self.roster()) is None:
            return []
        found = [client for client in clients if client not in roster.members]
        if len(clients) - len(found) < min(LEAST, len(clients)):
            raise InputError(
                f"encryption.keys = {self.keys!r}: of the {len(clients)} clients ({some(clients, _NAMED)}) only"
                f" {len(clients) - len(found)} are members there, expected at least {min(LEAST, len(clients))}; the"
                f" members are {some(list(roster.members), _NAMED)}"
            )
        return found

    def notes(self, clients: Sequence[str]) -> list[str]:
        """What to know of keys and clients before the first round."""
        found = self.strangers(clients)
        if not found:
            return []
        verb = "is no member" if len(found) == 1 else "are no members"
        return [f"{len(found)} of {len(clients)} clients ({some(found, _NAMED)}) {verb} of {self.keys}, and will fail"]

    def size_of_packets(self, parameters: int) -> int:
        """Parameters a packet, for a model of so many.

        Raises:
            InputError: If a packet does not fit a ciphertext.
        """
        most = self.chosen().slots - SLOTS
        if self.packet_size is None:
            return max(1, min(most, -(-parameters // _USUAL_PACKETS)))
        if self.packet_size > most:
            raise InputError(
                f"encryption.packet_size = {self.packet_size}: a ciphertext of {self.parameters} holds {most}"
                f" parameters (nearest valid: {most})"
            )
        return self.packet_size


@dataclass(frozen=True)
class Exchange:
    """One agreement on packets between a server and its clients.

    Attributes:
        encryption: The settings.
        layout: Where parameters lie in packets.
        contributors: K, the most that are added up.
        run_id: Sixteen hexadecimal digits of the run.
    """

    encryption: Encryption
    layout: PacketLayout
    contributors: int
    run_id: str

    def __post_init__(self) -> None:
        """Refuses more contributors than ciphertexts can be added up."""
        most = self.encryption.chosen().additions
        if self.encryption.enabled and self.contributors > most:
            raise InputError(
                f"{self.contributors} clients a round: a sum of more than {most} ciphertexts drowns in noise"
                f" (nearest valid: {most})"
            )

    @property
    def fixed(self) -> FixedPoint:
        """How numbers are rounded."""
        e = self.encryption
        if e.fraction_bits is None:
            return FixedPoint.fitting(e.clip, self.contributors)
        return FixedPoint(e.clip, e.fraction_bits, self.contributors)

    @property
    def row(self) -> int:
        """Whole numbers a packet: its parameters, the weight, the check value."""
        return self.layout.packet_size + SLOTS

    @property
    def check_bits(self) -> int:
        """Bits of a check value; K of them stay below 2^30."""
        return 30 - (self.contributors - 1).bit_length()

    def per_ciphertext(self) -> int:
        """How many packets a ciphertext can hold."""
        return max(1, self.encryption.chosen().slots // self.row)

    def payload_bytes(self, packets: int) -> int:
        """Length of a payload of so many packets."""
        return self.encryption.chosen().fresh_bytes if self.encryption.enabled else 4 * packets * self.row

    def sum_bytes(self, packets: int) -> int:
        """Length of a sum of such payloads."""
        return self.encryption.chosen().sum_bytes if self.encryption.enabled else 4 * packets * self.row

    def terms(self, *, entries: int, most: int, packets: int, bound: bool) -> Terms:
        """What messages are held to.

        Args:
            entries: Positions that a payload may have.
            most: Most payloads a message.
            packets: Packets a payload.
            bound: Whether payloads are exactly the marked packets.
        """
        roster, fixed = self.encryption.roster(), self.fixed
        return Terms(
            params_id=self.encryption.chosen().id,
            key_id=roster.key_id if roster else _SIMULATED,
            epoch=roster.epoch if roster else 0,
            layout_hash=self.layout.hash(fixed.clip, fixed.bits, packets, self.encryption.enabled),
            run_id=self.run_id,
            packets=self.layout.packets,
            entries=entries,
            payload_bytes=self.payload_bytes(packets),
            most=most,
            signed=roster is not None,
            bound=bound,
        )

    def key_id(self) -> str:
        """The present key."""
        roster = self.encryption.roster()
        return roster.key_id if roster else _SIMULATED

    def verify(self) -> Verify | None:
        """What checks signatures, where keys are no simulation."""
        roster = self.encryption.roster()
        if roster is None:
            return None

        def check(sender: str, content: bytes, signature: bytes) -> bool:
            return sender in roster.members and roster.members[sender].verifies(content, signature)

        return check


def groups_of(packets: Sequence[int], size: int) -> list[list[int]]:
    """Packets in runs of `size`: what travels in one payload each."""
    return [list(packets[i : i + size]) for i in range(0, len(packets), size)]
