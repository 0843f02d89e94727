from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from fedfi.federation.packet import Layout, Packet, PacketError, decode

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def every_dtype() -> Packet:
    tensors = {f"t{i}": torch.tensor([[0, 1], [1, 1], [3, 0]]).to(d) for i, d in enumerate(DTYPES)}
    tensors |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "view": torch.arange(6.0).view(2, 3).T,
    }
    return Packet(tensors, {"n": 3, "x": 0.1, "s": "ü", "b": True}, {"bits": b"\x00\xff", "none": b""})


def test_all_dtypes_survive_and_the_length_is_exact():
    packet = every_dtype()
    encoded = packet.encode()
    assert len(encoded) == packet.nbytes
    again = decode(encoded)
    for name, tensor in packet.tensors.items():
        assert again.tensors[name].dtype == tensor.dtype
        assert torch.equal(again.tensors[name], tensor)
    assert again.scalars == packet.scalars
    assert again.blobs == packet.blobs


def test_the_encoding_is_safetensors():
    packet = every_dtype()
    read = load(packet.encode())
    assert all(torch.equal(read[name], tensor) for name, tensor in packet.tensors.items())
    assert bytes(read["#bits"].tolist()) == b"\x00\xff"


def test_data_bytes_are_those_of_tensors_and_blobs():
    """3 floats of 4 bytes, 5 bytes of blob."""
    assert Packet({"a": torch.zeros(3)}, {"x": 1}, {"b": b"12345"}).data_nbytes == 17


def test_decoding_a_writable_buffer_copies_nothing():
    buffer = bytearray(Packet({"a": torch.zeros(3)}).encode())
    view = decode(buffer).tensors["a"]
    view += 1
    assert torch.equal(decode(buffer).tensors["a"], torch.ones(3))


@given(st.binary(max_size=64))
def test_hostile_bytes_are_refused(data):
    with pytest.raises(PacketError):
        decode(data)


@given(st.integers(0, 399), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_only_values(position, change):
    """What decodes has consistent names, shapes and lengths; nothing else is raised."""
    encoded = bytearray(every_dtype().encode())
    encoded[position] ^= change
    try:
        again = decode(bytes(encoded))
    except PacketError:
        return
    assert again.data_nbytes == every_dtype().data_nbytes


def test_every_truncation_is_refused():
    encoded = Packet({"a": torch.arange(4.0)}, {"x": 1}).encode()
    for length in range(len(encoded)):
        with pytest.raises(PacketError):
            decode(encoded[:length])
    with pytest.raises(PacketError, match="1 bytes after"):
        decode(encoded + b"\0")


def test_a_header_that_claims_too_much_is_refused():
    entries = {
        "a": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]},
        "__metadata__": {"scalars": "{}"},
    }
    text = json.dumps(entries).encode()
    with pytest.raises(PacketError, match="'a' does not fit"):
        decode(len(text).to_bytes(8, "little") + text)


def test_names_that_would_be_blobs_and_dtypes_without_a_wire_type_are_refused():
    with pytest.raises(PacketError, match="'#x'"):
        Packet({"#x": torch.zeros(1)}).encode()
    with pytest.raises(PacketError, match="complex64"):
        Packet({"x": torch.zeros(1, dtype=torch.complex64)}).encode()


def test_a_layout_names_both_shapes():
    layout = Layout.like({"w": torch.zeros(2, 3)}, loss=float)
    layout.check(Packet({"w": torch.ones(2, 3)}, {"loss": 1.0}), "c1")
    with pytest.raises(PacketError, match=r"client 'c1': tensor 'w' has shape \(1, 3\), expected \(2, 3\)"):
        layout.check(Packet({"w": torch.ones(1, 3)}, {"loss": 1.0}), "c1")
    with pytest.raises(PacketError, match=r"scalars differ.*missing \['loss'\]"):
        layout.check(Packet({"w": torch.ones(2, 3)}), "c1")
    with pytest.raises(PacketError, match="scalar 'loss' is nan"):
        layout.check(Packet({"w": torch.ones(2, 3)}, {"loss": float("nan")}), "c1")
    for value in ("nan", True):
        with pytest.raises(PacketError, match=f"scalar 'loss' is {value!r}, expected a float"):
            layout.check(Packet({"w": torch.ones(2, 3)}, {"loss": value}), "c1")
    bounded = Layout.like({"f": torch.zeros(2)}, n=int)
    bounded = Layout(bounded.tensors, bounded.scalars, least={"f": 0, "n": 1})
    with pytest.raises(PacketError, match=r"tensor 'f' of shape \(2,\) holds -1, expected at least 0"):
        bounded.check(Packet({"f": torch.tensor([0.0, -1.0])}, {"n": 1}), "c1")
    with pytest.raises(PacketError, match="scalar 'n' is 0, expected at least 1"):
        bounded.check(Packet({"f": torch.zeros(2)}, {"n": 0}), "c1")
    with pytest.raises(PacketError, match="blob 'm' has 1 bytes, expected 2"):
        Layout(blobs={"m": 2}).check(Packet(blobs={"m": b"1"}), "c1")


def test_numbers_that_are_not_finite_may_come_back_as_they_were_sent():
    """A mask of -inf is a constant; anything else that is not finite is what a client made of it."""
    sent = {"mask": torch.tensor([0.0, -torch.inf, torch.nan]), "update": torch.zeros(2)}
    layout = Layout.like(sent)
    layout.check(Packet(sent), "c1", sent)
    with pytest.raises(PacketError, match=r"client 'c1': tensor 'mask' of shape \(3,\) holds 2 non-finite values"):
        layout.check(Packet(sent), "c1")
    for made in ([0.0, torch.inf, torch.nan], [-torch.inf, -torch.inf, 1.0], [torch.nan, -torch.inf, torch.nan]):
        with pytest.raises(PacketError, match=r"'mask' of shape .* holds 1 non-finite"):
            layout.check(Packet(sent | {"mask": torch.tensor(made)}), "c1", sent)
    with pytest.raises(PacketError, match=r"'update' of shape .* holds 1 non-finite"):
        layout.check(Packet(sent | {"update": torch.tensor([0.0, -torch.inf])}), "c1", sent)


def test_values_whose_sum_is_too_large_are_finite_and_others_are_not():
    """3e38 + 3e38 is beyond float32, yet both are numbers; infinities of both signs cancel to no number."""
    layout = Layout.like({"x": torch.zeros(2)})
    layout.check(Packet({"x": torch.tensor([3e38, 3e38])}), "c0")
    for values in ([math.inf, -math.inf], [math.nan, 0.0], [-math.inf, 3e38]):
        with pytest.raises(PacketError, match="non-finite"):
            layout.check(Packet({"x": torch.tensor(values)}), "c0")


def test_a_header_is_plain_json_in_the_order_of_the_packet():
    """Names with quotes and letters beyond ASCII are escaped; offsets follow each other; blobs come last."""
    packet = Packet({'a"b': torch.zeros(2, 3), "\u00fc": torch.zeros(4, dtype=torch.int8)}, {"n": 1}, {"m": b"xyz"})
    size = int.from_bytes(packet.header[:8], "little")
    assert size % 8 == 0
    expected = {
        'a"b': {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "\u00fc": {"dtype": "I8", "shape": [4], "data_offsets": [24, 28]},
        "#m": {"dtype": "U8", "shape": [3], "data_offsets": [28, 31]},
        "__metadata__": {"scalars": '{"n": 1}'},
    }
    text = packet.header[8:].decode().rstrip()
    assert text == json.dumps(expected, separators=(",", ":"))
    assert Packet().header[8:].decode().rstrip() == '{"__metadata__":{"scalars":"{}"}}'
