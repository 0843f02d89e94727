"""The only file that imports Flower: what the others need of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedfi.errors import InputError
from fedfi.federation.packet import PacketError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise InputError("this needs Flower 1.42 or newer: pip install 'fedfi[flower]'") from error

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "Grid",
    "Message",
    "MessageType",
    "RecordDict",
    "ServerApp",
    "bounded",
]

_JOINS = "inflate"  # the method of Flower's types that puts one together out of its parts


@contextmanager
def bounded(limit: int) -> Iterator[None]:
    """Within it, Flower puts together no message whose arrays come to more than `limit` bytes.

    Flower's form of an array is a list of chunks, in which one chunk may stand any number of times: a message of a
    few bytes can ask for more memory than there is, before anybody else sees it.

    Args:
        limit: Bytes of all arrays of a message.

    Raises:
        PacketError: Out of the call that takes the message.
    """
    array, message = vars(Array)[_JOINS], vars(Message)[_JOINS]
    total = 0

    def inflate_array(cls: Any, object_content: bytes, children: Mapping[str, Any] | None = None) -> Any:
        nonlocal total
        total += _size(object_content, children or {})
        if total > limit:
            raise PacketError(f"the message holds {total} bytes, at most {limit} are allowed")
        return array.__func__(cls, object_content, children)

    def inflate_message(cls: Any, object_content: bytes, children: Mapping[str, Any] | None = None) -> Any:
        nonlocal total
        total = 0  # the next array is of the next message
        return message.__func__(cls, object_content, children)

    setattr(Array, _JOINS, classmethod(inflate_array))
    setattr(Message, _JOINS, classmethod(inflate_message))
    try:
        yield
    finally:
        setattr(Array, _JOINS, array)
        setattr(Message, _JOINS, message)


def _size(content: bytes, chunks: Mapping[str, Any]) -> int:
    """The bytes of an array, by its form and the chunks that came with it."""
    head, _, body = content.partition(b"\0")
    names = head.decode().split(" ")[1].split(",")
    return sum(len(chunks[names[i]].data) for i in json.loads(body)["arraychunk_ids"])
