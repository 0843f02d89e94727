"""Packets as Flower's records and back: the one place that knows both.

A message holds any number of parts, each a packet with a head of plain values. Every tensor and every blob is an
`Array` of its own: Flower cuts arrays into chunks, names each chunk by its content, and sends none twice, so a model
that goes to a hundred clients is uploaded once. The bytes are those of the tensor, little-endian, without a numpy
header, since numpy has no bfloat16. Nothing is pickled, and `unpack` trusts no field: sizes, names, types and lengths
are checked before a tensor is made.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.engines.flower.door import Array, ArrayRecord, ConfigRecord, Pieces, RecordDict
from fedfi.federation.packet import WIRE_TYPES, Packet, PacketError, Tree

WIRE = 1
"""Version of this format; nodes that speak another are refused."""

_STYPE = "fedfi.raw"
_RECORD = "fedfi"
_NAME = 1_000
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in WIRE_TYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
assert sys.byteorder == "little", "the wire format is little-endian"


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Limits:
    """What a message may hold; a larger one is refused before anything is made of it."""

    message_bytes: Annotated[int, Field(ge=1024, description="bytes of a message")] = 4 << 30
    head_bytes: Annotated[int, Field(ge=1024, description="bytes of the plain values in a message")] = 16 << 20
    entries: Annotated[int, Field(ge=1, description="tensors and blobs in a message")] = 1_000_000


@dataclass(frozen=True)
class Part:
    """One packet of a message, and plain values about it.

    Attributes:
        head: Anything JSON-able.
        packet: The packet.
    """

    head: Mapping[str, Any]
    packet: Packet = field(default_factory=Packet)


class Packer:
    """Makes messages; an array that equals that of the message before is the same object, not a copy.

    A message looks at the packets' own memory, so send it before a tensor of them changes.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, tuple[int, ...]], _Made] = {}

    def pack(self, about: Mapping[str, Any], parts: Sequence[Part]) -> Any:
        """The `RecordDict` of a message.

        Args:
            about: Plain values about the whole message.
            parts: Its packets.

        Raises:
            PacketError: If a tensor's dtype has no wire type.
        """
        records: dict[str, Any] = {}
        heads = []
        for i, part in enumerate(parts):
            packet = part.packet
            heads.append(
                {
                    "head": dict(part.head),
                    "scalars": dict(packet.scalars),
                    "tensors": list(packet.tensors),
                    "blobs": list(packet.blobs),
                }
            )
            arrays = [self._array(name, tensor) for name, tensor in packet.tensors.items()]
            arrays += [_raw("uint8", (len(blob),), bytes(blob)) for blob in packet.blobs.values()]
            if arrays:
                records[str(i)] = record = ArrayRecord()
                for k, array in enumerate(arrays):
                    record[str(k)] = array  # set like this, it is the same object, whose chunks are hashed once
        text = json.dumps({"about": dict(about), "parts": heads})
        return RecordDict({_RECORD: ConfigRecord({"wire": WIRE, "head": text}), **records})

    def _array(self, name: str, tensor: Tensor) -> Any:
        if tensor.dtype not in _NAMES:
            raise PacketError(f"tensor {name!r} has dtype {tensor.dtype}, which has no wire type")
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        key = (name, _NAMES[tensor.dtype], tuple(tensor.shape))
        last = self._last.get(key)
        if last is None or not last.holds(data):
            self._last[key] = last = _Made(_raw(key[1], key[2], data), tensor, _changes(tensor))
        return last.array


@dataclass(frozen=True)
class _Made:
    """An array that looks at a tensor's memory, and how often that had been changed when it was made."""

    array: Any
    tensor: Tensor
    changes: int | None

    def holds(self, data: Any) -> bool:
        """Whether it still is what was sent, and equals these bytes."""
        return self.changes is not None and _changes(self.tensor) == self.changes and _equal(self.array.data, data)


def _changes(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _equal(left: Any, right: Any) -> bool:
    return left.ctypes.data == right.ctypes.data or np.array_equal(left, right)


def _raw(dtype: str, shape: tuple[int, ...], data: Any) -> Any:
    array = Array(dtype=dtype, shape=shape, stype=_STYPE, data=b"")
    array.data = data  # any buffer will do; asked for bytes, it would be a copy
    return array


def pack(about: Mapping[str, Any], parts: Sequence[Part] = ()) -> Any:
    """The `RecordDict` of a single message; see `Packer.pack`."""
    return Packer().pack(about, parts)


def unpack(content: Any, limits: Limits | None = None) -> tuple[dict[str, Any], list[Part]]:
    """Reads a message.

    Tensors are views of the message's own bytes, or take their place there: read them, or clone before writing.

    Args:
        content: A `RecordDict`.
        limits: What it may hold.

    Returns:
        The plain values about the whole, and the parts.

    Raises:
        PacketError: If it is not a whole, consistent message of this version within the limits.
    """
    limits = limits or Limits()
    head = _head(content, limits)
    records = {name: record for name, record in content.items() if name != _RECORD}
    _check_size(records, limits)
    parts = []
    for i, entry in enumerate(head["parts"]):
        parts.append(_part(entry, records.pop(str(i), {})))
    if records:
        raise PacketError(f"the message holds records that it does not tell of: {sorted(records)[:5]}")
    return head["about"], parts


def _head(content: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(content, RecordDict) or not isinstance(content.get(_RECORD), ConfigRecord):
        raise PacketError(f"the message is not one of fedfi's: it has no record {_RECORD!r}")
    record = content[_RECORD]
    if record.get("wire") != WIRE:
        raise PacketError(f"the message has wire version {record.get('wire')!r}, expected {WIRE}")
    text = record.get("head")
    if not isinstance(text, str) or len(text) > limits.head_bytes:
        raise PacketError(f"the message's head is not a text of at most {limits.head_bytes} bytes")
    try:
        head = json.loads(text)
        about, parts = head["about"], head["parts"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PacketError(f"the message's head cannot be read: {type(error).__name__}") from None
    if not isinstance(about, dict) or not isinstance(parts, list):
        raise PacketError("the message's head is not a table of 'about' and 'parts'")
    return {"about": about, "parts": parts}


def _check_size(records: Mapping[str, Any], limits: Limits) -> None:
    count = total = 0
    for name, record in records.items():
        if not isinstance(record, ArrayRecord):
            raise PacketError(f"record {name!r} is a {type(record).__name__}, expected an ArrayRecord")
        count += len(record)
        total += sum(len(array.data) for array in record.values())
    if count > limits.entries:
        raise PacketError(f"the message holds {count} tensors, at most {limits.entries} are allowed")
    if total > limits.message_bytes:
        raise PacketError(f"the message holds {total} bytes, at most {limits.message_bytes} are allowed")


def _part(entry: Any, record: Mapping[str, Any]) -> Part:
    try:
        head, scalars, names, blobs = entry["head"], entry["scalars"], entry["tensors"], entry["blobs"]
    except (KeyError, TypeError):
        raise PacketError("a part of the message is malformed") from None
    if not isinstance(head, dict) or not isinstance(scalars, dict):
        raise PacketError("a part's head or scalars are not a table")
    if not all(isinstance(v, int | float | str) for v in scalars.values()):
        raise PacketError("a part's scalars are not a table of numbers, strings and booleans")
    for kind in (names, blobs):
        if not isinstance(kind, list) or not all(isinstance(n, str) for n in kind) or len(set(kind)) != len(kind):
            raise PacketError("a part's names are not a list of different texts")
        if any(len(n) > _NAME for n in kind):
            raise PacketError(f"a part holds a name of more than {_NAME} characters")
    if set(record) != {str(k) for k in range(len(names) + len(blobs))}:
        raise PacketError(f"a part tells of {len(names) + len(blobs)} tensors and blobs, but holds {len(record)}")
    tensors: Tree = {name: _tensor(name, record[str(k)]) for k, name in enumerate(names)}
    given = {name: _blob(name, record[str(len(names) + k)]) for k, name in enumerate(blobs)}
    return Part(head, Packet(tensors, scalars, given))


def _checked(name: str, array: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    dtype, shape = _DTYPES.get(array.dtype), array.shape
    if array.stype != _STYPE or dtype is None:
        raise PacketError(f"tensor {name!r} is {array.dtype[:80]!r} in {array.stype[:80]!r}, which has no wire type")
    if len(shape) > 16 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise PacketError(f"tensor {name!r} has shape {str(shape)[:80]}")
    if math.prod(shape) * dtype.itemsize != len(array.data):
        raise PacketError(f"tensor {name!r} has shape {str(shape)[:80]} of {dtype}, but {len(array.data)} bytes")
    return dtype, shape


def _tensor(name: str, array: Any) -> Tensor:
    dtype, shape = _checked(name, array)
    if not len(array.data):
        return torch.empty(shape, dtype=dtype)
    if isinstance(array.data, Pieces):
        array.data = _joined(array.data)  # which frees the pieces
    plain = _viewed(array.data)
    if dtype == torch.bool and int(plain.max()) > 1:
        raise PacketError(f"tensor {name!r} is bool, but holds a byte of {int(plain.max())}")
    return plain.view(dtype).view(shape)


def _joined(data: Pieces) -> Any:
    """The bytes of all pieces as one buffer."""
    if len(data.pieces) == 1:
        return data.pieces[0]
    plain, start = torch.empty(len(data), dtype=torch.uint8), 0
    for piece in filter(len, data.pieces):
        plain[start : start + len(piece)] = _viewed(piece)
        start += len(piece)
    return plain.numpy()


def _viewed(data: Any) -> Tensor:
    """A buffer of at least one byte as a tensor of bytes."""
    with warnings.catch_warnings():  # the bytes may not be writable, and nobody writes
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=torch.uint8)


def _blob(name: str, array: Any) -> bytes:
    if _checked(name, array)[0] != torch.uint8:
        raise PacketError(f"blob {name!r} is {array.dtype[:80]}, expected uint8")
    return bytes(array.data)
