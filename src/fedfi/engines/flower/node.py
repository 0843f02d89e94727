"""The side where the data are: a node answers the server's messages for the clients that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from fedfi.engines.flower.agreement import Agreement
from fedfi.engines.flower.disk import DiskMemory, MemoryLost, default_root, step_of
from fedfi.engines.flower.door import ClientApp, Message
from fedfi.engines.flower.roster import sizes_of
from fedfi.engines.flower.together import outcomes_of, works_together
from fedfi.engines.flower.wire import Limits, Part, pack, unpack
from fedfi.engines.workplace import Job, Outcome, Workplace
from fedfi.errors import InputError
from fedfi.federation.algorithm import Algorithm, Failure
from fedfi.federation.engine import Work
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.task import Task


def clients_of_partition(clients: Sequence[str], partition: int, partitions: int) -> list[str]:
    """The clients that a node holds: every `partitions`-th one, from the `partition`-th on.

    Args:
        clients: All clients of the federation, in order.
        partition: The node's number, from 0.
        partitions: The number of nodes.

    Raises:
        InputError: If the numbers do not fit each other.
    """
    if partitions < 1 or not 0 <= partition < partitions:
        nearest = min(max(partition, 0), max(partitions, 1) - 1)
        raise InputError(
            f"partition-id = {partition}: must be from 0 to num-partitions - 1 = {partitions - 1}"
            f" (nearest valid: {nearest})"
        )
    return list(clients[partition::partitions])


class Node:
    """Does what messages ask for, on this node's clients and no others.

    Args:
        algorithm: The method.
        task: Model, data, recipe; its clients may be more than those held here.
        agreement: What this side works with; by default that of the method and the task.
        clients: The clients held here; by default all of the task's.
        own: Whether the examples are the node's own, rather than a share that the experiment deals out.
        memory: Folder for what clients remember; by default `default_root`.
        limits: What a message may hold.
        workplace: Where the work is done, if that is shared with other nodes in this process.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        task: Task,
        *,
        agreement: Agreement | None = None,
        clients: Sequence[str] | None = None,
        own: bool = False,
        memory: Path | None = None,
        limits: Limits | None = None,
        workplace: Workplace | None = None,
    ) -> None:
        self._algorithm, self._task, self._own = algorithm, task, own
        self._agreement = agreement or Agreement.between(algorithm, task)
        self._clients = list(task.data.clients) if clients is None else list(clients)
        self._held = frozenset(self._clients)
        self._memory, self._limits = memory or default_root(), limits or Limits()
        self._workplace = workplace

    def introduce(self, message: Any) -> Any:
        """Answers who this node is: its clients with their numbers of examples, and what it works with."""
        unpack(message.content, self._limits)
        every = sizes_of(self._task)
        sizes = {client: every[client] for client in self._clients}
        about = {"clients": sizes, "own": self._own, "agreement": self._agreement.described()}
        return Message(content=pack(about), reply_to=message)

    def work(self, message: Any) -> Any:
        """Does the jobs of a message; what goes wrong with one is told in its place."""
        about, jobs = unpack(message.content, self._limits)
        work, round, seed = about["work"], int(about["round"]), int(about["seed"])
        difference = Agreement.from_described(about["agreement"]).difference(self._agreement)
        if difference:
            raise InputError(f"this node cannot work for the server: {difference}")
        memory = DiskMemory(self._memory, about["run"])
        if self._workplace is None or self._workplace.seed != seed:
            self._workplace = Workplace(self._algorithm, self._task, seed)
        parts = self._do(self._workplace, memory, work, round, jobs)
        echo = {key: about[key] for key in ("work", "round", "run")}
        return Message(content=pack(echo, parts), reply_to=message)

    def _do(self, place: Workplace, memory: DiskMemory, work: Work, round: int, jobs: Sequence[Part]) -> list[Part]:
        """The parts of a reply, in the order of the jobs."""
        if not works_together(place, work):
            return [self._alone(place, memory, work, round, job) for job in jobs]
        prepared = [self._prepared(memory, job) for job in jobs]
        ready = [item for item in prepared if isinstance(item, _Ready)]
        stored = {item.client: item.stored for item in ready}
        outcomes = outcomes_of(place, work, round, [(item.client, item.packet) for item in ready], stored)
        step = step_of(work, round)
        return [
            _finished(memory, item, outcomes[item.client], step) if isinstance(item, _Ready) else item
            for item in prepared
        ]

    def _alone(self, place: Workplace, memory: DiskMemory, work: Work, round: int, job: Part) -> Part:
        item = self._prepared(memory, job)
        if not isinstance(item, _Ready):
            return item
        outcome = place.do(Job(work, item.client, round, item.packet, item.stored))
        return _finished(memory, item, outcome, step_of(work, round))

    def _prepared(self, memory: DiskMemory, job: Part) -> _Ready | Part:
        """A job with what its client remembers; or the reply that says why it cannot be done."""
        client, version = str(job.head["client"]), job.head["memory"]
        head: dict[str, Any] = {"client": client, "memory": version}
        if client not in self._held:
            held = ", ".join(self._clients[:5]) or "none"
            return _failed(head, Failure(client, "node", f"this node does not hold {client!r}; it holds {held}"))
        keep = list(job.head.get("keep", ()))
        try:
            return _Ready(head, client, job.packet, memory.read(client, version), version, keep)
        except MemoryLost as error:
            if job.head.get("lost") != "forget":
                return _failed(head, Failure(client, "memory", str(error)))
            return _Ready(head | {"note": f"{error}; it forgot"}, client, job.packet, {}, None, keep)


@dataclass(frozen=True)
class _Ready:
    """A job that can be done.

    Attributes:
        head: What the reply will say of itself.
        client: Whose.
        packet: What the server sent.
        stored: What the client remembers.
        version: The version of that.
        keep: Further versions that are still needed.
    """

    head: dict[str, Any]
    client: str
    packet: Packet
    stored: Tree
    version: str | None
    keep: list[str]


def _finished(memory: DiskMemory, job: _Ready, outcome: Outcome, step: int) -> Part:
    reply = outcome.reply
    if isinstance(reply, Failure):
        return _failed(job.head, reply)
    version = job.version
    if outcome.changed or outcome.removed:
        now = {n: t for n, t in {**job.stored, **outcome.changed}.items() if n not in outcome.removed}
        try:
            version = memory.write(job.client, step, now, base=version, keep=job.keep)
        except OSError as error:
            text = f"its memory cannot be written: {error.strerror or error}"
            return _failed(job.head, Failure(job.client, "memory", text))
    return Part(job.head | {"memory": version, "seconds": reply.seconds}, reply.packet)


def _failed(head: dict[str, Any], failure: Failure) -> Part:
    return Part(head | {"failure": asdict(failure)}, Packet())


class NodeFactory(Protocol):
    """Makes the node that a Flower context describes; called with every message, so it should remember."""

    def __call__(self, context: Any) -> Node:
        """The node, by `context.node_config` and `context.run_config`."""
        ...


def node_app(make: NodeFactory) -> Any:
    """A Flower `ClientApp` that does the work of a node.

    Args:
        make: Gives the node of a context.
    """
    app = ClientApp()
    app.query()(lambda message, context: make(context).introduce(message))
    app.train()(lambda message, context: make(context).work(message))
    app.evaluate()(lambda message, context: make(context).work(message))
    return app
