"""Every way in which a message can be wrong is refused."""

from __future__ import annotations

import dataclasses
import struct

import pytest
import torch

from fedfi.crypto.message import Gate, Message, MessageError, Terms, decode, encode

pytest.importorskip("cryptography", reason="the extra 'he' is not installed")
from fedfi.crypto.identity import Identity

TERMS = Terms("a" * 16, "b" * 16, 3, "c" * 16, "d" * 16, packets=20, entries=20, payload_bytes=32, most=4)
ALICE, MALLORY = Identity.new(), Identity.new()
PUBLIC = ALICE.public()


def verify(sender: str, content: bytes, signature: bytes) -> bool:
    return sender == "alice" and PUBLIC.verifies(content, signature)


def mask_of(*indices: int) -> torch.Tensor:
    mask = torch.zeros(20, dtype=torch.bool)
    mask[list(indices)] = True
    return mask


def message(*indices: int, **changes) -> Message:
    payloads = [bytes([i]) * 32 for i in indices]
    return dataclasses.replace(Message("alice", 5, 0, mask_of(*indices), indices, payloads, 1), **changes)


def written(what: Message | None = None, terms: Terms = TERMS, by: Identity = ALICE) -> bytes:
    return encode(what or message(2, 7, 19), terms, by.sign)


def read(data: bytes, terms: Terms = TERMS) -> Message:
    return decode(data, terms, sender="alice", round=5, phase=0, verify=verify)


def test_what_is_written_is_read():
    found = read(written())
    assert (found.sender, found.round, found.sequence, list(found.indices)) == ("alice", 5, 1, [2, 7, 19])
    assert found.payloads[1] == bytes([7]) * 32
    assert torch.equal(found.mask, mask_of(2, 7, 19))


def test_a_thousand_random_flips_are_all_refused():
    data = written()
    rng = torch.Generator().manual_seed(0)
    for position in torch.randint(len(data) * 8, (1000,), generator=rng).tolist():
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(MessageError):
            read(bytes(flipped))


def test_every_truncation_is_refused():
    data = written()
    for length in range(len(data)):
        with pytest.raises(MessageError):
            read(data[:length])
    with pytest.raises(MessageError):
        read(data + b"\0")


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"params_id": "0" * 16}, "parameters"),
        ({"key_id": "0" * 16}, "key 0000"),
        ({"epoch": 2}, "epoch 2, expected 3"),
        ({"layout_hash": "0" * 16}, "layout"),
        ({"run_id": "0" * 16}, "run 0000"),
    ],
)
def test_what_belongs_elsewhere_is_refused(terms, said):
    with pytest.raises(MessageError, match=f"'alice': is of {said}"):
        read(written(terms=dataclasses.replace(TERMS, **terms)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"round": 4}, "is of round 4, expected 5"),
        ({"phase": 1}, "is of phase 1, expected 0"),
        ({"sender": "bob"}, "is signed as 'bob'"),
        ({"indices": (2, 2, 7)}, "payload 2 follows 2: indices must rise"),
        ({"indices": (7, 2, 19)}, "payload 2 follows 7"),
        ({"indices": (2, 7, 20)}, "payload 20 is out of range"),
        ({"mask": mask_of(2, 7)}, "marks 2 packets and holds 3"),
        ({"mask": mask_of(2, 7, 18)}, "holds a packet that its mask does not mark"),
        ({"payloads": [b"a" * 32, b"b" * 31, b"c" * 33]}, "payload 7 claims 31 bytes, expected 32"),
    ],
)
def test_a_message_that_its_own_sender_signed_is_held_to_the_terms(changes, said):
    with pytest.raises(MessageError, match=said):
        read(written(message(2, 7, 19, **changes)))


def test_more_packets_than_kappa_are_refused():
    five = written(message(1, 2, 3, 4, 5), dataclasses.replace(TERMS, most=5))
    with pytest.raises(MessageError, match=r"\d+ bytes, at most|5 payloads, at most 4"):
        read(five)


def test_a_length_that_lies_is_refused_before_it_is_used():
    data = bytearray(written())
    at = data.index(struct.pack("<H", 5) + b"alice") + 2 + 5  # the mask's length
    data[at : at + 4] = struct.pack("<I", 2**32 - 1)
    content = bytes(data[: -16 - 64])
    from hashlib import blake2b

    content += blake2b(content, digest_size=16).digest()
    with pytest.raises(MessageError, match="its mask claims 4294967295 bytes, at most 3"):
        read(content + ALICE.sign(content))


def test_swapped_payloads_are_refused():
    data = written()
    a, b = bytes([2]) * 32, bytes([7]) * 32
    swapped = data.replace(a, b"#" * 32).replace(b, a).replace(b"#" * 32, b)
    with pytest.raises(MessageError, match="damaged"):
        read(swapped)


def test_another_signature_is_refused_and_does_not_lock_the_sender_out():
    gate = Gate(TERMS, round=5, phase=0, verify=verify)
    with pytest.raises(MessageError, match="'alice': is not signed by the sender"):
        gate.open(written(by=MALLORY), "alice")
    gate.open(written(), "alice")
    with pytest.raises(MessageError, match="'alice': has delivered in this round already"):
        gate.open(written(), "alice")


def test_unsigned_messages_are_taken_only_where_it_was_agreed():
    unsigned = dataclasses.replace(TERMS, signed=False)
    data = encode(message(2), unsigned, None)
    assert list(read(data, unsigned).indices) == [2]
    with pytest.raises(MessageError):
        read(data)
