"""Packets survive Flower's serialisation to the bit, and nothing hostile gets through."""

from __future__ import annotations

import json
import math

import pytest
import torch
from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable
from tests.flower.fakes import over_the_wire

from fedfi.engines.flower import wire
from fedfi.engines.flower.door import Array, ArrayRecord, ConfigRecord, Message, Pieces, RecordDict, bounded, paced
from fedfi.engines.flower.wire import Limits, Packer, Part, pack, unpack
from fedfi.federation.packet import Packet, PacketError

DTYPES = list(wire._DTYPES.values())


def sent(content):
    return over_the_wire(Message(content, 7, "train")).content


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*raw)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 3)], ids=str)
def test_every_dtype_and_shape_arrives_to_the_bit(dtype, shape):
    rng = torch.Generator().manual_seed(0)
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=rng, dtype=torch.uint8)
    tensor = raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)  # NaNs and denormals, too
    _, (part,) = unpack(sent(pack({}, [Part({}, Packet({"x": tensor}))])))
    assert same_bits(part.packet.tensors["x"], tensor)


def test_everything_about_a_packet_arrives():
    packet = Packet(
        {"b": torch.ones(2), "a": torch.arange(6).view(2, 3).T, "": torch.zeros(1), "#": torch.tensor(True)},
        {"n": 2**80, "x": 0.1, "inf": math.inf, "text": "ä\x00\n", "yes": True, "none": False},
        {"all": bytes(range(256)), "empty": b"", "b": b"b"},
    )
    about, parts = unpack(sent(pack({"round": 3}, [Part({"client": "ü"}, packet), Part({"client": "v"}, packet)])))
    assert about == {"round": 3}
    assert [p.head["client"] for p in parts] == ["ü", "v"]
    for part in parts:
        assert list(part.packet.tensors) == list(packet.tensors)
        assert all(same_bits(part.packet.tensors[n], t) for n, t in packet.tensors.items())
        assert part.packet.scalars == packet.scalars
        assert {n: type(v) for n, v in part.packet.scalars.items()} == {n: type(v) for n, v in packet.scalars.items()}
        assert part.packet.blobs == packet.blobs


def test_large_arrays_are_cut_into_chunks_and_put_together_again():
    big = torch.randn(3_000_000, generator=torch.Generator().manual_seed(1))  # 12 MB, chunks of 5 MB
    content = pack({}, [Part({}, Packet({"big": big}, blobs={"blob": big.numpy().tobytes()}))])
    assert [len(a.slice_array()) for a in content["0"].values()] == [3, 3]
    _, (part,) = unpack(sent(content))
    assert torch.equal(part.packet.tensors["big"], big)
    assert part.packet.blobs["blob"] == big.numpy().tobytes()


def test_what_goes_to_many_is_one_object():
    packer, model = Packer(), torch.ones(4)
    one = packer.pack({}, [Part({}, Packet({"w": model, "own": torch.zeros(1)}))])
    model_again = model.clone()
    two = packer.pack({}, [Part({}, Packet({"w": model_again, "own": torch.ones(1)}))])
    assert one["0"]["0"] is two["0"]["0"]
    assert one["0"]["1"] is not two["0"]["1"]
    model_again.zero_()  # a buffer that is used again changes nothing that was sent
    assert packer.pack({}, [Part({}, Packet({"w": model_again}))])["0"]["0"] is not two["0"]["0"]
    model.zero_()
    three = packer.pack({}, [Part({}, Packet({"w": model}))])
    assert three["0"]["0"] is not one["0"]["0"]
    assert packer.pack({}, [Part({}, Packet({"w": model}))])["0"]["0"] is three["0"]["0"]
    assert torch.equal(unpack(three)[1][0].packet.tensors["w"], torch.zeros(4))


def test_a_dtype_without_wire_type_is_refused():
    with pytest.raises(PacketError, match=r"'x' has dtype torch.complex64"):
        pack({}, [Part({}, Packet({"x": torch.zeros(1, dtype=torch.complex64)}))])


def good():
    return pack({"a": 1}, [Part({}, Packet({"x": torch.ones(2, 3)}, {"s": 1}, {"b": b"123"}))])


def with_head(change) -> RecordDict:
    content = good()
    head = json.loads(content["fedfi"]["head"])
    change(head)
    content["fedfi"]["head"] = json.dumps(head)
    return content


def with_array(**changes) -> RecordDict:
    content = good()
    old = content["0"]["0"]
    fields = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": bytes(old.data)} | changes
    content["0"]["0"] = Array(**fields)
    return content


def without(record: str) -> RecordDict:
    content = good()
    del content[record]
    return content


HOSTILE = {
    "empty": (RecordDict, "no record 'fedfi'"),
    "no head": (lambda: RecordDict({"fedfi": ConfigRecord({"wire": 1})}), "head"),
    "another version": (
        lambda: RecordDict({"fedfi": ConfigRecord({"wire": 2, "head": "{}"})}),
        "version 2, expected 1",
    ),
    "not JSON": (lambda: RecordDict({"fedfi": ConfigRecord({"wire": 1, "head": "{"})}), "cannot be read"),
    "deep JSON": (lambda: RecordDict({"fedfi": ConfigRecord({"wire": 1, "head": "[" * 10**5})}), "cannot be read"),
    "a list": (lambda: RecordDict({"fedfi": ConfigRecord({"wire": 1, "head": "[]"})}), "cannot be read"),
    "about": (lambda: with_head(lambda h: h.update(about=[])), "not a table"),
    "parts": (lambda: with_head(lambda h: h.update(parts={})), "not a table"),
    "a part": (lambda: with_head(lambda h: h.update(parts=[3])), "part of the message is malformed"),
    "scalars": (lambda: with_head(lambda h: h["parts"][0].update(scalars={"s": [1]})), "scalars"),
    "names": (lambda: with_head(lambda h: h["parts"][0].update(tensors=["x", "x"])), "different texts"),
    "more names": (lambda: with_head(lambda h: h["parts"][0].update(tensors=["x", "y"])), "tells of 3"),
    "fewer names": (lambda: with_head(lambda h: h["parts"][0].update(tensors=[])), "tells of 1"),
    "fewer parts": (lambda: with_head(lambda h: h.update(parts=[])), r"does not tell of: \['0'\]"),
    "no arrays": (lambda: without("0"), "tells of 2 tensors and blobs, but holds 0"),
    "another record": (lambda: RecordDict({**good(), "0": ConfigRecord({"x": 1})}), "expected an ArrayRecord"),
    "one more record": (lambda: RecordDict({**good(), "9": ArrayRecord()}), "does not tell of"),
    "dtype": (lambda: with_array(dtype="object"), "'object'"),
    "stype": (lambda: with_array(stype="numpy.ndarray"), "'numpy.ndarray'"),
    "short": (lambda: with_array(data=b"12"), "but 2 bytes"),
    "long": (lambda: with_array(data=bytes(25)), "but 25 bytes"),
    "negative": (lambda: with_array(shape=(-2, -3)), "has shape"),
    "huge": (lambda: with_array(shape=(2**62, 2**62)), "bytes"),
    "nested": (lambda: with_array(shape=(1,) * 99), "has shape"),
    "no bool": (lambda: with_array(dtype="bool", data=b"\x00\x01\x02\x01\x01\x00"), "a byte of 2"),
    "blob": (lambda: with_head(lambda h: h["parts"][0].update(tensors=[], blobs=["x", "b"])), "blob 'x' is float32"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_message_is_refused(name):
    make, said = HOSTILE[name]
    with pytest.raises(PacketError, match=said):
        unpack(sent(make()) if name not in ("negative", "huge") else make())


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(message_bytes=1024), "holds 4000 bytes, at most 1024"),
        (Limits(entries=3), "holds 4 tensors, at most 3"),
        (Limits(head_bytes=1024), "at most 1024 bytes"),
    ],
)
def test_limits_hold_before_anything_is_made(limits, said, monkeypatch):
    content = pack(
        {"long": "x" * 1100 * (limits.head_bytes == 1024)},
        [Part({}, Packet({str(i): torch.ones(250) for i in range(4)}))],
    )
    monkeypatch.setattr(torch, "frombuffer", None)
    with pytest.raises(PacketError, match=said):
        unpack(content, limits)


def test_a_large_array_is_joined_once_under_a_bound():
    """What the server reads: the pieces as they came, of which a tensor is made that takes their place."""
    big = torch.randn(3_000_000, generator=torch.Generator().manual_seed(1))
    content = pack({}, [Part({}, Packet({"big": big, "again": big, "s": torch.tensor(1.5)}, blobs={"blob": b"abc"}))])
    with bounded(25_000_000):
        content = sent(content)
    array = content["0"]["0"]
    assert isinstance(array.data, Pieces)
    assert (len(array.data), len(array.data.pieces)) == (12_000_000, 3)
    for _ in range(2):  # it may be read again
        _, (part,) = unpack(content)
        assert all(torch.equal(part.packet.tensors[n], t) for n, t in {"big": big, "again": big}.items())
        assert part.packet.tensors["s"].item() == 1.5
        assert part.packet.blobs == {"blob": b"abc"}
    assert not isinstance(array.data, Pieces)


def test_few_objects_wait_to_be_sent():
    made, taken, waiting = [], [], []

    def contents():
        for i in range(200):
            made.append(i)
            waiting.append(len(made) - len(taken))
            yield str(i), b"x"

    paced(push_object_contents_from_iterable)(contents(), lambda name, content: taken.append(name))
    assert sorted(map(int, taken)) == list(range(200))
    assert max(waiting) <= 2 * 8 + 1


def test_what_cannot_be_sent_is_told_and_ends():
    def send(name, content):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        paced(push_object_contents_from_iterable)(((str(i), b"x") for i in range(1000)), send)
