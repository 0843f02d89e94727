"""Who is there, and which node holds which client: the server's view of the federation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedfi.data.ratings import RatingsData
from fedfi.engines.flower.agreement import Agreement
from fedfi.engines.flower.door import Message, MessageType, bounded
from fedfi.engines.flower.notes import Notes
from fedfi.engines.flower.replies import printable
from fedfi.engines.flower.wire import Limits, pack, unpack
from fedfi.errors import RunError, counted
from fedfi.federation.packet import PacketError
from fedfi.federation.task import Task

NodeId = int
_INTRODUCTION = 600.0  # seconds that a question for an introduction stays valid
_TRIES = 5
_NAME = 200
TRANSIENT = frozenset({0, 3, 4, 5, 8})
"""Flower's error codes that say nothing of the work itself: a message was lost, a node is away, a process died."""


@dataclass(frozen=True)
class Clock:
    """Time, so that tests need none."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass
class Roster:
    """The nodes that introduced themselves.

    A node that holds a client which another one held takes it over: that is how a node that was started again comes
    back. A node whose program, experiment, model or data differ from the server's is refused, with a note that says
    why.

    Attributes:
        grid: Flower's way to the nodes.
        agreement: The server's view; None takes any node, for those who only want to know who is there.
        sizes: Every client of the federation, with the numbers of train and test examples that it must have, or None
            where it brings its own; without this, any client is welcome.
        limits: What an introduction may hold.
        clock: Time.
        notes: What happened to nodes: joined, left, moved, refused.
    """

    grid: Any
    agreement: Agreement | None = None
    sizes: Mapping[str, tuple[int, int] | None] | None = None
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=Clock)
    notes: Notes = field(default_factory=Notes)
    _asked: dict[str, NodeId] = field(default_factory=dict)
    _refused: dict[NodeId, str] = field(default_factory=dict)
    _clients: dict[NodeId, dict[str, tuple[int, int]]] = field(default_factory=dict)
    _holder: dict[str, NodeId] = field(default_factory=dict)
    _activated: dict[NodeId, str] = field(default_factory=dict)
    _own: set[NodeId] = field(default_factory=set)
    _tries: dict[NodeId, int] = field(default_factory=dict)
    _arrivals: dict[NodeId, int] = field(default_factory=dict)

    def where(self, client: str) -> NodeId | None:
        """The node that holds a client."""
        return self._holder.get(client)

    def arrivals(self, node: NodeId) -> int:
        """How often a node has introduced itself."""
        return self._arrivals.get(node, 0)

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """All clients that are held anywhere, with their numbers of train and test examples, by name."""
        return {c: self._clients[node][c] for c, node in sorted(self._holder.items())}

    @property
    def own(self) -> bool:
        """Whether nodes bring their own data."""
        return bool(self._own)

    def refresh(self) -> None:
        """Sees who came and who left; asks those who came, and reads what others answered."""
        present = {node.node_id: getattr(node, "last_activated_at", "") for node in self.grid.get_nodes()}
        for node in list(self._clients):
            if node not in present:
                self.forget(node, "left")
            elif present[node] != self._activated[node]:  # whatever it was working on is lost
                self.forget(node, "was started again")
        self._refused = {n: why for n, why in self._refused.items() if present.get(n) == self._activated[n]}
        self._asked = {m: n for m, n in self._asked.items() if present.get(n) == self._activated[n]}
        known = {*self._clients, *self._refused, *self._asked.values()}
        for node in sorted(set(present) - known):
            self._activated[node] = present[node]
            self._ask(node)
        for identifier in list(self._asked):
            self._pull(identifier)

    def forget(self, node: NodeId, why: str, *, odd: bool = True) -> None:
        """A node that is not there any more; it may introduce itself again.

        Args:
            node: Which.
            why: What is noted of it.
            odd: Whether that is a warning.
        """
        for client in self._clients.pop(node, {}):
            if self._holder.get(client) == node:
                del self._holder[client]
                holders = [other for other, clients in self._clients.items() if client in clients]
                if holders:  # it took the client over from one that is still there
                    self._holder[client] = holders[-1]
        self._own.discard(node)
        (self.notes.warn if odd else self.notes.tell)(f"node {node} {why}")

    def wait(self, clients: Iterable[str] | None, count: int, seconds: float) -> None:
        """Waits until enough clients are there.

        Args:
            clients: Those that are meant; None for any.
            count: How many of them.
            seconds: How long at most.

        Raises:
            RunError: If they did not come, naming some that are missing and the nodes that were refused.
        """
        wanted = None if clients is None else list(clients)
        end = self.clock.now() + seconds
        while True:
            self.refresh()
            there = [c for c in self._holder if wanted is None or c in wanted]
            if len(there) >= count:
                return
            if self.clock.now() >= end:
                missing = [c for c in wanted or () if c not in there]
                told = f"; missing {', '.join(map(repr, missing[:5]))}" if missing else ""
                refused = "".join(f"; node {n} was refused: {why}" for n, why in self._refused.items())
                raise RunError(f"after {seconds:g} s {len(there)} of {count} clients are there{told}{refused}")
            self.clock.sleep(0.2)

    def _ask(self, node: NodeId) -> None:
        message = Message(pack({}), node, MessageType.QUERY, ttl=_INTRODUCTION)
        for identifier in list(self.grid.push_messages([message])):
            if identifier:
                self._asked[identifier] = node

    def _pull(self, identifier: str) -> None:
        """Takes an answer, if it is there; alone, since Flower drops what it pulls together with hostile bytes."""
        try:
            with bounded(self.limits.message_bytes):
                replies = list(self.grid.pull_messages([identifier]))
        except Exception as error:  # hostile bytes are met within Flower's own code
            node = self._asked.pop(identifier)
            self._refuse(node, f"its introduction cannot be received: {type(error).__name__}: {error}")
            return
        for reply in replies:
            self._hear(identifier, reply)

    def _hear(self, identifier: str, reply: Any) -> None:
        node = self._asked.pop(identifier, None)
        if node is None:
            return
        if reply.has_error():
            self._tries[node] = self._tries.get(node, 0) + 1
            if reply.error.code in TRANSIENT and self._tries[node] < _TRIES:
                return  # it is asked again
            self._refuse(node, f"it cannot introduce itself: {reply.error.reason}")
            return
        try:
            if reply.metadata.src_node_id != node:
                raise PacketError(f"node {reply.metadata.src_node_id} answered in its place")
            about, _ = unpack(reply.content, self.limits)
            clients = self._agreed(about)
        except PacketError as error:
            self._refuse(node, str(error))
            return
        self._clients[node] = clients
        self._arrivals[node] = self.arrivals(node) + 1
        self._tries.pop(node, None)
        if about.get("own"):
            self._own.add(node)
        for client in clients:
            before = self._holder.get(client)
            if before is not None:
                self.notes.warn(f"client {client!r} moved from node {before} to node {node}")
            self._holder[client] = node
        held = printable(", ".join(list(clients)[:5])) + ", ..." * (len(clients) > 5)
        self.notes.tell(f"node {node} joined with {counted(len(clients), 'client')}: {held}")

    def _agreed(self, about: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
        clients = _sizes(about.get("clients"))
        theirs = Agreement.from_described(about.get("agreement"))
        if self.agreement is not None:
            difference = self.agreement.difference(theirs)
            if difference:
                raise PacketError(difference)
            if theirs.torch != self.agreement.torch:
                self.notes.warn(f"a node has torch {theirs.torch}, the server {self.agreement.torch}")
        for client, size in clients.items() if self.sizes is not None else ():
            if self.sizes is None or client not in self.sizes:
                raise PacketError(f"it holds client {client!r}, which is not of this federation")
            expected = self.sizes[client]
            if expected is not None and expected != size:
                raise PacketError(
                    f"its client {client!r} has {size[0]} train and {size[1]} test examples, expected"
                    f" {expected[0]} and {expected[1]}"
                )
        return clients

    def _refuse(self, node: NodeId, why: str) -> None:
        why = printable(why)
        self._refused[node] = why
        self.notes.warn(f"node {node} is refused: {why}")


def sizes_of(task: Task) -> dict[str, tuple[int, int]]:
    """How much each client of a task holds: numbers of train and test examples, or of a user's items likewise."""
    if isinstance(task.data, RatingsData):
        return {user: (len(own), 1) for user, own in zip(task.data.users, task.data.train, strict=True)}
    return {client: (len(data.train), len(data.test)) for client, data in task.data.clients.items()}


def _sizes(given: Any) -> dict[str, tuple[int, int]]:
    try:
        sizes = {str(c): (pair[0], pair[1]) for c, pair in given.items()}
    except (AttributeError, TypeError, KeyError, IndexError):
        raise PacketError("its introduction does not tell its clients") from None
    if not all(0 < len(client) <= _NAME for client in sizes):
        raise PacketError(f"its introduction names a client by no or more than {_NAME} characters")
    if not all(type(n) is int and 0 <= n < 2**63 for pair in sizes.values() for n in pair):
        raise PacketError("its introduction gives numbers of examples that are none")
    return sizes
