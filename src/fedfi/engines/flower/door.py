"""The only file that imports Flower: what the others need of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedfi.errors import InputError
from fedfi.federation.packet import PacketError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.inflatable import inflatable_utils as transport
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
    "Pieces",
    "RecordDict",
    "ServerApp",
    "bounded",
]

_JOINS = "inflate"  # the method of Flower's types that puts one together out of its parts
_PUSHES = "push_object_contents_from_iterable"


class Pieces(bytes):
    """The bytes of an array as they came, piece after piece; of the type that Flower asks for, though empty as such.

    Flower would join them, and keep the pieces until all of a message is joined: twice its bytes.

    Attributes:
        pieces: What comes to the bytes of the array, in order.
    """

    pieces: Sequence[memoryview]

    @staticmethod
    def of(pieces: Sequence[memoryview]) -> Pieces:
        """These pieces as the data of an array."""
        made = Pieces()
        made.pieces = pieces
        return made

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


@contextmanager
def bounded(limit: int) -> Iterator[None]:
    """Within it, Flower puts together no message whose arrays come to more than `limit` bytes; data are `Pieces`.

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
        pieces = _pieces(object_content, children or {})
        total += len(pieces)
        if total > limit:
            raise PacketError(f"the message holds {total} bytes, at most {limit} are allowed")
        made = array.__func__(cls, object_content, dict.fromkeys(children or {}, _NOTHING))
        made.data = pieces
        return made

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


class _Nothing:
    """Stands for a chunk where only the form of an array is read."""

    data = b""


_NOTHING = _Nothing()


def paced(push: Callable[..., None]) -> Callable[..., None]:
    """Flower's way to send objects, with few of them in memory.

    It makes copies of all objects of a message before it sends the first; here, of those whose turn is next.

    Args:
        push: Takes pairs of a name and its content, and what sends one.
    """

    def sending(contents: Iterable[tuple[str, bytes]], send: Callable[[str, bytes], None], **options: Any) -> None:
        room, failed = threading.Semaphore(2 * min(_CORES, _SENDERS)), threading.Event()

        def next_ones() -> Iterator[tuple[str, bytes]]:
            them = iter(contents)
            while True:
                while not room.acquire(timeout=0.1):
                    if failed.is_set():  # nobody makes room any more; the caller hears of it
                        return
                try:
                    yield next(them)
                except StopIteration:
                    return

        def sent(name: str, content: bytes) -> None:
            try:
                send(name, content)
            except BaseException:
                failed.set()
                raise
            finally:
                room.release()

        push(next_ones(), sent, **options)

    return sending


_CORES, _SENDERS = os.cpu_count() or 1, 8
if hasattr(transport, _PUSHES):  # else it sends as it does
    setattr(transport, _PUSHES, paced(getattr(transport, _PUSHES)))


def _pieces(content: bytes, chunks: Mapping[str, Any]) -> Pieces:
    """The bytes of an array, by its form and the chunks that came with it."""
    head, _, body = content.partition(b"\0")
    names = head.decode().split(" ")[1].split(",")
    return Pieces.of([chunks[names[i]].data for i in json.loads(body)["arraychunk_ids"]])
