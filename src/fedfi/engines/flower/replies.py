"""Reading what a node sent back: every field is checked before the loop sees a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedfi.engines.flower.wire import Limits, Part, unpack
from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.packet import Packet, PacketError

_TEXT = 2_000
_TRACE = 20_000
_LONGEST = 1e9  # seconds
_STAGES = ("client_negotiate", "client_update", "client_evaluate", "node", "memory")


def read_replies(
    content: Any, jobs: Sequence[tuple[str, Packet]], expected: Mapping[str, Any], limits: Limits
) -> list[tuple[Reply | Failure, Mapping[str, Any]]]:
    """The replies to the jobs of a message, in their order, each with what the node says about it.

    Args:
        content: What came; None if it came from elsewhere than it should.
        jobs: Clients, and what they were sent.
        expected: What the message must say of itself.
        limits: What it may hold.
    """
    try:
        if content is None:
            raise PacketError("another node answered in its place")
        about, parts = unpack(content, limits)
        for key, value in expected.items():
            if about.get(key) != value:
                raise PacketError(f"it answers {key} = {str(about.get(key))[:80]!r}, expected {value!r}")
        by_client = _by_client(parts, [client for client, _ in jobs])
    except PacketError as error:
        text = str(error)[:_TEXT]  # names in it are the sender's choice
        return [(Failure(client, "reply", f"client {client!r}: {text}"), {}) for client, _ in jobs]
    found: list[tuple[Reply | Failure, Mapping[str, Any]]] = []
    for client, sent in jobs:
        part = by_client.get(client)
        if part is None:
            found.append((Failure(client, "reply", f"client {client!r}: its node sent no reply for it"), {}))
        else:
            found.append((_read(client, sent, part), part.head))
    return found


def _by_client(parts: Sequence[Part], asked: Sequence[str]) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for part in parts:
        client = part.head.get("client")
        if client not in asked:
            raise PacketError(f"it answers for {str(client)[:80]!r}, which was not asked")
        if client in found:
            raise PacketError(f"it answers twice for {client!r}")
        found[str(client)] = part
    return found


def _read(client: str, sent: Packet, part: Part) -> Reply | Failure:
    failure = part.head.get("failure")
    if failure is not None:
        return _failure(client, failure)
    seconds, version = part.head.get("seconds"), part.head.get("memory")
    if not isinstance(seconds, int | float) or not 0 <= seconds < _LONGEST:
        return Failure(client, "reply", f"client {client!r}: its time is {str(seconds)[:80]!r}, expected seconds")
    if version is not None and not isinstance(version, str):
        return Failure(client, "reply", f"client {client!r}: its memory's version is not a text")
    return Reply(client, part.packet, float(seconds), sent)


def _failure(client: str, given: Any) -> Failure:
    if not isinstance(given, dict) or given.get("stage") not in _STAGES:
        return Failure(client, "reply", f"client {client!r}: its failure cannot be read")
    lines = str(given.get("error", ""))[:_TEXT].splitlines() or ["no reason was given"]
    trace = str(given.get("traceback", ""))[:_TRACE]
    return Failure(client, str(given["stage"]), printable(lines[0]), "\n".join(map(printable, trace.splitlines())))


def printable(text: str, length: int = _TEXT) -> str:
    """The beginning of a text of somebody else's, without what a terminal or an encoding would stumble over."""
    return "".join(c if c.isprintable() else "?" for c in text[:length])
