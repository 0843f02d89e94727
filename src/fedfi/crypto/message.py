"""The signed message that carries packets, and everything that is checked before one byte of it is believed.

```
magic 4 | version 1 | phase 1 | params 8 | key 8 | epoch 4 | layout 8 | run 8 | round 4 | sequence 4
| sender: 2 + n | mask: 4 + n | count 4 | (index 4, length 4, digest 16) x count | payloads
| digest of all before 16 | signature 0 or 64
```

Whole numbers are unsigned and little-endian. The mask is a bitmap over packets. Lengths are held against what was
agreed before anything is cut out by them. A digest finds damage; only a signature finds forgery, so a federation
without keys (simulations) trusts its transport.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedfi.crypto.identity import SIGNATURE_BYTES
from fedfi.errors import InputError
from fedfi.numerics.selection import pack_bits, unpack_bits

MAGIC, VERSION = b"FFHE", 1
_FIXED = struct.Struct("<4sBB8s8sI8s8sII")
_ENTRY = struct.Struct("<II16s")
_MOST_NAME = 512
Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""(sender, content, signature) -> whether the sender signed it."""


class MessageError(InputError):
    """A message that is refused; the text says why."""


@dataclass(frozen=True)
class Terms:
    """What both sides agreed on before the round.

    Attributes:
        params_id: Of the parameters, sixteen hexadecimal digits.
        key_id: Of key, epoch and roster.
        epoch: Of the key.
        layout_hash: Of the packets.
        run_id: Of the run.
        packets: Number of packets P, the bits of a mask.
        entries: Number of positions that a payload may have.
        payload_bytes: Length of each payload.
        most: Most payloads a message (kappa).
        signed: Whether messages carry signatures.
        bound: Whether payloads are exactly the packets of the mask.
    """

    params_id: str
    key_id: str
    epoch: int
    layout_hash: str
    run_id: str
    packets: int
    entries: int
    payload_bytes: int
    most: int
    signed: bool = True
    bound: bool = True

    def most_bytes(self) -> int:
        """Length beyond which a message is not even parsed."""
        mask = -(-self.packets // 8)
        entries = self.most * (_ENTRY.size + self.payload_bytes)
        return _FIXED.size + 2 + _MOST_NAME + 4 + mask + 4 + entries + 16 + SIGNATURE_BYTES


@dataclass(frozen=True)
class Message:
    """What a client says in one phase of one round.

    Attributes:
        sender: Its id.
        round: Of the run, from 0.
        phase: 0 is the exchange of values, 1 the vote before it.
        mask: Packets that it shares, boolean `[P]`.
        indices: Position of each payload, rising.
        payloads: Their bytes.
        sequence: Counts the sender's messages of the round.
    """

    sender: str
    round: int
    phase: int
    mask: Tensor
    indices: Sequence[int] = ()
    payloads: Sequence[bytes] = field(default=(), repr=False)
    sequence: int = 0


def encode(message: Message, terms: Terms, sign: Sign | None) -> bytes:
    """The bytes of a message.

    Args:
        message: What to say.
        terms: What was agreed.
        sign: The sender's signature of some bytes; None where `terms.signed` is false.
    """
    sender, mask = message.sender.encode(), pack_bits(message.mask)
    parts = [
        _FIXED.pack(
            MAGIC,
            VERSION,
            message.phase,
            bytes.fromhex(terms.params_id),
            bytes.fromhex(terms.key_id),
            terms.epoch,
            bytes.fromhex(terms.layout_hash),
            bytes.fromhex(terms.run_id),
            message.round,
            message.sequence,
        ),
        struct.pack("<H", len(sender)) + sender,
        struct.pack("<I", len(mask)) + mask,
        struct.pack("<I", len(message.payloads)),
    ]
    for index, payload in zip(message.indices, message.payloads, strict=True):
        parts.append(_ENTRY.pack(index, len(payload), _digest(payload)))
    content = b"".join([*parts, *message.payloads])
    content += _digest(content)
    return content + (sign(content) if sign else b"")


def decode(data: bytes, terms: Terms, *, sender: str, round: int, phase: int, verify: Verify | None) -> Message:
    """Reads a message and refuses whatever is not exactly as agreed.

    Args:
        data: What arrived.
        terms: What was agreed.
        sender: Who the transport says it is from.
        round: The open round.
        phase: The open phase.
        verify: Checks signatures; needed where `terms.signed`.

    Raises:
        MessageError: Naming the sender and the reason.
    """
    try:
        return _decode(data, terms, sender, round, phase, verify)
    except MessageError as error:
        raise MessageError(f"message of {sender!r}: {error}") from None


def _decode(data: bytes, terms: Terms, sender: str, round: int, phase: int, verify: Verify | None) -> Message:
    if len(data) > terms.most_bytes():
        raise MessageError(f"{len(data)} bytes, at most {terms.most_bytes()} were agreed")
    tail = 16 + (SIGNATURE_BYTES if terms.signed else 0)
    if len(data) < _FIXED.size + 10 + tail:
        raise MessageError(f"{len(data)} bytes are too few")
    magic, version, its_phase, params, key, epoch, layout, run, its_round, sequence = _FIXED.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise MessageError(f"begins with {magic!r}, version {version}; expected {MAGIC!r}, version {VERSION}")
    for what, given, agreed in (
        ("parameters", params.hex(), terms.params_id),
        ("epoch", epoch, terms.epoch),
        ("key", key.hex(), terms.key_id),
        ("layout", layout.hex(), terms.layout_hash),
        ("run", run.hex(), terms.run_id),
        ("round", its_round, round),
        ("phase", its_phase, phase),
    ):
        if given != agreed:
            raise MessageError(f"is of {what} {given}, expected {agreed}")
    _check_end(data, terms, sender, verify)
    content = data[: len(data) - tail]
    name, position = _cut(content, _FIXED.size, "<H", _MOST_NAME, "sender")
    if name != sender.encode():
        raise MessageError(f"is signed as {name.decode(errors='replace')!r}")
    bits, position = _cut(content, position, "<I", -(-terms.packets // 8), "mask")
    try:
        mask = unpack_bits(bits, terms.packets)
    except ValueError as error:
        raise MessageError(f"mask: {error}") from None
    indices, payloads = _payloads(content, position, terms)
    if terms.bound and int(mask.sum()) != len(indices):
        raise MessageError(f"marks {int(mask.sum())} packets and holds {len(indices)}")
    if terms.bound and not bool(mask[torch.tensor(indices, dtype=torch.int64)].all()):
        raise MessageError("holds a packet that its mask does not mark")
    return Message(sender, its_round, its_phase, mask, indices, payloads, sequence)


def _check_end(data: bytes, terms: Terms, sender: str, verify: Verify | None) -> None:
    end = len(data) - (SIGNATURE_BYTES if terms.signed else 0)
    if _digest(data[: end - 16]) != data[end - 16 : end]:
        raise MessageError("is damaged: its digest differs")
    if terms.signed and (verify is None or not verify(sender, data[:end], data[end:])):
        raise MessageError("is not signed by the sender")


def _cut(content: bytes, position: int, kind: str, most: int, what: str) -> tuple[bytes, int]:
    size = struct.calcsize(kind)
    if position + size > len(content):
        raise MessageError(f"ends within its {what}")
    (length,) = struct.unpack_from(kind, content, position)
    if length > most:
        raise MessageError(f"its {what} claims {length} bytes, at most {most} were agreed")
    if position + size + length > len(content):
        raise MessageError(f"ends within its {what}")
    return content[position + size : position + size + length], position + size + length


def _payloads(content: bytes, position: int, terms: Terms) -> tuple[list[int], list[bytes]]:
    if position + 4 > len(content):
        raise MessageError("ends before its payloads")
    (count,) = struct.unpack_from("<I", content, position)
    if count > terms.most:
        raise MessageError(f"{count} payloads, at most {terms.most} were agreed")
    start = position + 4 + count * _ENTRY.size
    if start + count * terms.payload_bytes != len(content):
        raise MessageError(f"{len(content) - position} bytes do not hold {count} payloads of {terms.payload_bytes}")
    indices: list[int] = []
    payloads = []
    for i in range(count):
        index, length, digest = _ENTRY.unpack_from(content, position + 4 + i * _ENTRY.size)
        if length != terms.payload_bytes:
            raise MessageError(f"payload {index} claims {length} bytes, expected {terms.payload_bytes}")
        if index >= terms.entries:
            raise MessageError(f"payload {index} is out of range: there are {terms.entries}")
        if indices and index <= indices[-1]:
            raise MessageError(f"payload {index} follows {indices[-1]}: indices must rise")
        payload = content[start + i * length : start + (i + 1) * length]
        if _digest(payload) != digest:
            raise MessageError(f"payload {index} is damaged")
        indices.append(index)
        payloads.append(payload)
    return indices, payloads


class Gate:
    """Lets each sender through once a round and phase.

    A message that fails a check leaves no trace, so that a forgery cannot keep the true sender out.
    """

    def __init__(self, terms: Terms, *, round: int, phase: int, verify: Verify | None) -> None:
        self.terms, self._round, self._phase, self._verify = terms, round, phase, verify
        self._seen: set[str] = set()

    def check(self, data: bytes, sender: str) -> Message:
        """The message, checked, without letting it through.

        Raises:
            MessageError: If it is not as agreed, or the sender has delivered.
        """
        message = decode(data, self.terms, sender=sender, round=self._round, phase=self._phase, verify=self._verify)
        if sender in self._seen:
            raise MessageError(f"message of {sender!r}: has delivered in this round already")
        return message

    def open(self, data: bytes, sender: str) -> Message:
        """The message, checked; a second one of the sender is refused from now on.

        Raises:
            MessageError: As `check`.
        """
        message = self.check(data, sender)
        self._seen.add(sender)
        return message


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
