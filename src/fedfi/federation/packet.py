"""The packet: the only thing that crosses between server and client, and its exact encoding.

The encoding is the safetensors format (8 bytes header length, JSON header, raw little-endian data), so that any
safetensors reader opens it. Scalars travel in the header's metadata, blobs as byte tensors whose names begin with
``#``. Nothing is pickled, and `decode` trusts no byte: lengths, offsets, names and types are checked before a
tensor is made.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.numerics.finite import all_finite

Tree = dict[str, Tensor]
Scalar = int | float | str | bool

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
WIRE_TYPES = tuple(_NAMES)
"""All types of tensors that travel."""
_LARGEST = 2**63  # whole numbers beyond are none that a method counts with, and overflow a float or a tensor


class PacketError(InputError):
    """A packet that is malformed, or whose content is not what was agreed."""


@dataclass(frozen=True)
class Packet:
    """Tensors, scalars and bytes that travel together.

    Attributes:
        tensors: Named tensors of any shape; on arrival they may be views of a shared buffer, so read them, or
            clone before writing.
        scalars: Small named values; floats may be any finite or non-finite number.
        blobs: Named bytes, such as bitmaps or ciphertexts.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def header(self) -> bytes:
        """The encoded header, length prefix included, padded so that the data begins at a multiple of 8."""
        parts: list[tuple[str, str, tuple[int, ...], int]] = []
        for name, tensor in self.tensors.items():
            if tensor.dtype not in _NAMES:
                raise PacketError(f"tensor {name!r} has dtype {tensor.dtype}, which has no wire type")
            if name.startswith("#"):
                raise PacketError(f"tensor name {name!r} begins with '#', which marks blobs")
            parts.append((name, _NAMES[tensor.dtype], tuple(tensor.shape), tensor.nbytes))
        parts += [("#" + name, "U8", (len(blob),), len(blob)) for name, blob in self.blobs.items()]
        metadata = _json({"scalars": json.dumps(dict(self.scalars))})
        text = f'{{{_entries(tuple(parts))}"__metadata__":{metadata}}}'.encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    @cached_property
    def nbytes(self) -> int:
        """The exact number of bytes of the encoding."""
        return len(self.header) + self.data_nbytes

    @property
    def data_nbytes(self) -> int:
        """The bytes of tensors and blobs alone, without the header."""
        return sum(t.nbytes for t in self.tensors.values()) + sum(map(len, self.blobs.values()))

    def encode_into(self, buffer: memoryview) -> None:
        """Writes the encoding to the start of a writable buffer of at least `nbytes` bytes."""
        end = len(self.header)
        buffer[:end] = self.header
        for tensor in self.tensors.values():
            start, end = end, end + tensor.nbytes
            if tensor.nbytes:
                target = torch.frombuffer(buffer[start:end], dtype=torch.uint8)
                target.copy_(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        for blob in self.blobs.values():
            start, end = end, end + len(blob)
            buffer[start:end] = blob

    def encode(self) -> bytes:
        """The encoding as bytes."""
        buffer = bytearray(self.nbytes)
        self.encode_into(memoryview(buffer))
        return bytes(buffer)

    def cpu(self) -> Packet:
        """The same on the CPU, where all packets are when they arrive."""
        return Packet({k: t.cpu() for k, t in self.tensors.items()}, self.scalars, self.blobs)

    def clone(self) -> Packet:
        """A packet that owns its tensors."""
        return Packet({k: t.clone() for k, t in self.tensors.items()}, self.scalars, self.blobs)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@functools.lru_cache(maxsize=256)  # the replies of a round are alike but for their scalars
def _entries(parts: tuple[tuple[str, str, tuple[int, ...], int], ...]) -> str:
    """The entries of a header: name, type, shape and bytes of each tensor, with a comma behind each."""
    text, offset = "", 0
    for name, dtype, shape, size in parts:
        entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        text += f"{_json(name)}:{_json(entry)},"
        offset += size
    return text


def decode(buffer: bytes | bytearray | memoryview) -> Packet:
    """Reads an encoding; tensors are views of `buffer` where it is writable, and copies otherwise.

    Raises:
        PacketError: If the bytes are not a complete, consistent encoding.
    """
    view = memoryview(buffer if not isinstance(buffer, bytes) else bytearray(buffer))
    if len(view) < 8:
        raise PacketError(f"a packet of {len(view)} bytes is shorter than its length prefix of 8")
    length = int.from_bytes(view[:8], "little")
    if length > len(view) - 8:
        raise PacketError(f"the header says {length} bytes, but only {len(view) - 8} follow")
    try:
        entries = json.loads(bytes(view[8 : 8 + length]))
        scalars = json.loads(entries.pop("__metadata__")["scalars"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PacketError(f"the header is not a packet's: {error}") from None
    if not isinstance(scalars, dict) or not all(isinstance(v, int | float | str) for v in scalars.values()):
        raise PacketError("the scalars are not a table of numbers, strings and booleans")
    data = view[8 + length :]
    tensors: Tree = {}
    blobs: dict[str, bytes] = {}
    end = 0
    for name, entry in entries.items():
        start, stop, dtype, shape = _checked(name, entry, end, len(data))
        end = stop
        if name.startswith("#"):
            blobs[name[1:]] = bytes(data[start:stop])
        elif start == stop:
            tensors[name] = torch.empty(shape, dtype=dtype)
        else:
            tensors[name] = torch.frombuffer(data[start:stop], dtype=dtype).view(shape)
    if end != len(data):
        raise PacketError(f"the packet ends {len(data) - end} bytes after its last entry")
    return Packet(tensors, scalars, blobs)


def _checked(name: str, entry: Any, begin: int, size: int) -> tuple[int, int, torch.dtype, list[int]]:
    try:
        dtype = _DTYPES[entry["dtype"]]
        shape = [int(n) for n in entry["shape"]]
        start, stop = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise PacketError(f"the entry of {name!r} is malformed") from None
    if min(shape, default=0) < 0 or start != begin or not start <= stop <= size:
        raise PacketError(f"the entry of {name!r} does not fit the packet: offsets {start} to {stop} of {size}")
    if math.prod(shape) * dtype.itemsize != stop - start:
        raise PacketError(f"{name!r} has shape {shape} of {dtype}, but {stop - start} bytes")
    return start, stop, dtype, shape


@dataclass(frozen=True)
class Layout:
    """What a packet must contain, exactly: the agreement against which every reply is checked.

    Attributes:
        tensors: Shape and dtype of each tensor.
        scalars: Type of each scalar; a whole number passes for a float.
        blobs: Length of each blob in bytes.
        least: Smallest value that a tensor or scalar of this name may hold.
        most: Largest magnitude of a number that a tensor or scalar of this name may hold.
        most_bytes: Blobs whose length is only bounded: at most so many bytes.
        also: A further check of packet and sender, which raises a `PacketError`.
    """

    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    scalars: Mapping[str, type[Scalar]] = field(default_factory=dict)
    blobs: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    most_bytes: Mapping[str, int] = field(default_factory=dict)
    also: Callable[[Packet, str], None] | None = None

    @staticmethod
    def like(tensors: Mapping[str, Tensor], **scalars: type[Scalar]) -> Layout:
        """The layout of packets whose tensors look like `tensors`."""
        return Layout({k: (tuple(t.shape), t.dtype) for k, t in tensors.items()}, scalars)

    def check(self, packet: Packet, sender: str, sent: Mapping[str, Tensor] | None = None) -> None:
        """Refuses a packet that differs in a name, shape, type or length, or holds a number out of range.

        Args:
            packet: What arrived.
            sender: Who sent it, for the error.
            sent: What it answers, by name. Numbers that are not finite may come back as they were sent, such as the
                -inf of a mask that is a buffer.

        Raises:
            PacketError: Naming the sender, the tensor, and both shapes or dtypes.
        """
        for kind, given, expected in (
            ("tensors", set(packet.tensors), set(self.tensors)),
            ("scalars", set(packet.scalars), set(self.scalars)),
            ("blobs", set(packet.blobs), {*self.blobs, *self.most_bytes}),
        ):
            if given != expected:
                lacking, extra = sorted(expected - given), sorted(given - expected)
                raise PacketError(
                    f"client {sender!r}: {kind} differ from what was agreed: missing {lacking}, unexpected {extra}"
                )
        for name, tensor in packet.tensors.items():
            shape, dtype = self.tensors[name]
            if tuple(tensor.shape) != shape:
                raise PacketError(
                    f"client {sender!r}: tensor {name!r} has shape {tuple(tensor.shape)}, expected {shape}"
                )
            if tensor.dtype != dtype:
                raise PacketError(f"client {sender!r}: tensor {name!r} is {tensor.dtype}, expected {dtype}")
            if tensor.is_floating_point() and (count := _not_finite(tensor, (sent or {}).get(name))):
                raise PacketError(
                    f"client {sender!r}: tensor {name!r} of shape {shape} holds {count} non-finite values"
                )
            if name in self.least and tensor.numel() and float(tensor.min()) < self.least[name]:
                raise PacketError(
                    f"client {sender!r}: tensor {name!r} of shape {shape} holds {float(tensor.min()):g},"
                    f" expected at least {self.least[name]:g}"
                )
            if name in self.most and tensor.numel() and (largest := _largest(tensor)) > self.most[name]:
                raise PacketError(
                    f"client {sender!r}: tensor {name!r} of shape {shape} holds {largest:g} in magnitude,"
                    f" expected at most {self.most[name]:g}"
                )
        for name, value in packet.scalars.items():
            self._check_scalar(name, value, sender)
        for name, blob in packet.blobs.items():
            if len(blob) > self.most_bytes.get(name, len(blob)):
                raise PacketError(
                    f"client {sender!r}: blob {name!r} has {len(blob)} bytes, expected at most {self.most_bytes[name]}"
                )
            if len(blob) != self.blobs.get(name, len(blob)):
                raise PacketError(
                    f"client {sender!r}: blob {name!r} has {len(blob)} bytes, expected {self.blobs[name]}"
                )

        if self.also:
            self.also(packet, sender)

    def _check_scalar(self, name: str, value: Scalar, sender: str) -> None:
        expected = self.scalars[name]
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise PacketError(f"client {sender!r}: scalar {name!r} is {value!r}, expected a {expected.__name__}")
        if isinstance(value, str):
            return
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise PacketError(f"client {sender!r}: scalar {name!r} has {value.bit_length()} bits, expected at most 63")
        if not math.isfinite(value):
            raise PacketError(f"client {sender!r}: scalar {name!r} is {value}")
        if name in self.least and value < self.least[name]:
            raise PacketError(f"client {sender!r}: scalar {name!r} is {value}, expected at least {self.least[name]:g}")
        if name in self.most and abs(value) > self.most[name]:
            raise PacketError(f"client {sender!r}: scalar {name!r} is {value}, expected at most {self.most[name]:g}")


def _largest(tensor: Tensor) -> float:
    """The largest magnitude; infinities were judged before, and are those that may be there."""
    values = tensor.double().abs()
    return float(values.masked_fill(~values.isfinite(), 0).max())


def _not_finite(tensor: Tensor, sent: Tensor | None) -> int:
    """How many numbers are not finite, those aside that were sent so."""
    if all_finite(tensor):
        return 0
    finite = torch.isfinite(tensor)
    if sent is not None and sent.shape == tensor.shape and sent.dtype == tensor.dtype:
        finite |= (tensor == sent) | (tensor.isnan() & sent.isnan())
    return int((~finite).sum())
