"""The engine whose clients live on the nodes of a Flower federation.

Jobs go out as one message a node, or several where they are long. Replies are taken in the order of the jobs, a few
ahead, and wait in the SuperLink until then, so that the server holds a few replies however many clients there are.
A message whose node or process died is sent again; that is safe, since the same job gives the same reply. What a
client computed wrongly is not asked for again.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from fedfi.engines.flower.agreement import Agreement
from fedfi.engines.flower.disk import is_version, step_of
from fedfi.engines.flower.door import Message, MessageType, bounded
from fedfi.engines.flower.notes import Note
from fedfi.engines.flower.replies import printable, read_replies
from fedfi.engines.flower.roster import TRANSIENT, Clock, NodeId, Roster, sizes_of
from fedfi.engines.flower.wire import Limits, Packer, Part
from fedfi.engines.workplace import Workplace
from fedfi.errors import InputError
from fedfi.federation.algorithm import Algorithm, Failure, Reply
from fedfi.federation.engine import Judged, Split, Work
from fedfi.federation.evaluation import examples_of, means, shards
from fedfi.federation.packet import Packet, PacketError
from fedfi.federation.task import Task
from fedfi.numerics.allocator import return_freed_memory

_TYPES = {
    "client_negotiate": MessageType.TRAIN,
    "client_update": MessageType.TRAIN,
    "client_evaluate": MessageType.EVALUATE,
}
_DAY = 86_400.0
_WINDOW = 32  # messages whose replies are asked for at a time
_GRACE = 600.0  # seconds that a reply which came in time may wait for its turn after the deadline


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Patience:
    """How long the server waits, and what it does about those who do not come."""

    timeout: Annotated[float | None, Field(gt=0, description="seconds for a round's replies; none = no limit")] = None
    absence: Annotated[float, Field(ge=0, description="seconds that a round waits for a client that is away")] = 60.0
    attempts: Annotated[int, Field(ge=1, description="how often a job is sent when processes die of it")] = 3
    lost_memory: Annotated[
        Literal["refuse", "forget"], Field(description="a client whose memory is gone fails, or begins anew")
    ] = "refuse"
    bundle_bytes: Annotated[int, Field(ge=0, description="bytes after which a node's next jobs go separately")] = (
        64 << 20
    )
    ahead_bytes: Annotated[int, Field(ge=0, description="bytes of replies that are taken before their turn")] = (
        256 << 20
    )


@dataclass
class _Job:
    client: str
    packet: Packet
    bundle: _Bundle | None = None
    attempts: int = 0
    away_since: float | None = None
    unsent_since: float | None = None
    not_before: float = 0.0
    done: Reply | Failure | None = None
    version: str | None = None


@dataclass
class _Bundle:
    """A message on its way."""

    node: NodeId
    jobs: list[_Job]
    arrivals: int
    identifier: str = ""


@dataclass
class _Round:
    """What a call of `map` is about."""

    work: Work
    round: int
    deadline: float | None
    absence_ends: float
    order: deque[_Job] = field(default_factory=deque)
    bundles: dict[str, _Bundle] = field(default_factory=dict)
    packer: Packer = field(default_factory=Packer)
    largest: int = 0  # bytes of the largest reply so far, since replies may be larger than what was sent


class FlowerEngine:
    """Has client work done on a Flower federation; the server's evaluations are done in this process.

    Args:
        grid: Flower's `Grid`, as a `ServerApp` gets it.
        algorithm: The method.
        task: Model and data of the server: its test and validation examples, and the names of all clients. Their
            examples are not used.
        agreement: What this side works with, for comparison with the nodes; by default that of the method and task.
        seed: The run's seed.
        patience: How long to wait.
        limits: What a message may hold.
        roster: Who is there, where that is known already.
        clock: Time, so that tests need none.

    Attributes:
        roster: Who is there.
        notes: What happened that is no failure of a client: nodes that came and went, replies nobody waited for.
    """

    def __init__(
        self,
        grid: Any,
        algorithm: Algorithm[Any],
        task: Task,
        *,
        agreement: Agreement | None = None,
        seed: int = 0,
        patience: Patience | None = None,
        limits: Limits | None = None,
        roster: Roster | None = None,
        clock: Clock | None = None,
    ) -> None:
        return_freed_memory()
        self._grid, self._task, self._seed = grid, task, seed
        self._agreement = agreement or Agreement.between(algorithm, task)
        self._patience, self._limits, self._clock = patience or Patience(), limits or Limits(), clock or Clock()
        self._workplace = Workplace(algorithm, task, seed)
        self._run = secrets.token_hex(8)
        self._versions: dict[str, str] = {}
        self._kept: dict[str, str] = {}  # versions of the checkpoint before the newest
        self._saved: dict[str, str] = {}  # and of the newest
        if roster is None:
            roster = Roster(grid, self._agreement, dict(sizes_of(task)), self._limits, self._clock)
        self.roster = roster
        self.notes = roster.notes

    def clients(self) -> Sequence[str]:
        """All clients of the federation, whether their nodes are there or not."""
        return list(self._task.data.clients)

    def wait(self, seconds: float, count: int | None = None) -> None:
        """Waits until nodes that hold `count` of the clients are there; by default, all.

        Args:
            seconds: How long at most.
            count: How many.

        Raises:
            RunError: If they did not come.
        """
        clients = self.clients()
        self.roster.wait(clients, len(clients) if count is None else count, seconds)

    def map(self, work: Work, jobs: Iterable[tuple[str, Packet]], round: int) -> Iterator[Reply | Failure]:
        """Has each job done on the node that holds its client; yields in the order of `jobs`."""
        now = self._clock.now()
        deadline = None if self._patience.timeout is None else now + self._patience.timeout
        turn = _Round(work, round, deadline, now + self._patience.absence)
        self._look()
        self._send_all(turn, jobs)
        pause, looked = 0.02, self._clock.now()
        while turn.order:
            heard = self._collect(turn)
            if self._over(turn):  # late replies are not waited for; those that are there count
                self._give_up(turn)
            while turn.order and turn.order[0].done is not None:
                yield self._finished(turn.order.popleft())
            if not turn.order:
                return
            unsent = any(job.bundle is None and job.done is None for job in turn.order)
            if unsent or self._clock.now() - looked > 1:
                looked = self._clock.now()
                self._mend(turn)
            pause = 0.02 if heard else min(pause * 1.5, 0.5)
            self._clock.sleep(pause)

    def evaluate(
        self, what: Judged, models: Iterable[tuple[str, Packet]], split: Split
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Means of the evaluation of each model over the server's examples."""
        examples = examples_of(self._task.data, split)
        for name, model in models:
            parts = [self._workplace.judge(what, model, split, start, stop) for start, stop in shards(examples)]
            yield name, means(parts)

    def memory(self) -> Mapping[str, Any]:
        """Which version of each client's memory this state goes with; the memory itself stays with the clients."""
        self._kept, self._saved = self._saved, dict(self._versions)
        return {"run": self._run, "versions": dict(self._saved), "kept": dict(self._kept)}

    def restore(self, memory: Mapping[str, Any], round: int) -> None:
        """Goes on from these versions; clients that have gone further go back to them.

        Raises:
            InputError: If the checkpoint is of another kind of engine.
        """
        if "run" not in memory:
            raise InputError("the checkpoint is of a run on one machine; it cannot go on on Flower")
        self._run = str(memory["run"])
        self._versions = dict(memory["versions"])
        self._saved, self._kept = dict(self._versions), dict(memory["kept"])

    def close(self) -> None:
        """Nothing is to be ended: the grid belongs to Flower."""

    def take_notes(self) -> list[Note]:
        """The notes, which are gone afterwards; the log had them when it happened."""
        return self.notes.take()

    # sending

    def _send_all(self, turn: _Round, jobs: Iterable[tuple[str, Packet]]) -> None:
        waiting: dict[NodeId, list[_Job]] = {}
        for client, packet in jobs:
            job = _Job(client, packet)
            turn.order.append(job)
            node = self.roster.where(client)
            if node is None:
                job.away_since = self._clock.now()
                continue
            group = waiting.setdefault(node, [])
            if group and sum(j.packet.data_nbytes for j in group) + packet.data_nbytes > self._patience.bundle_bytes:
                self._send(turn, node, waiting.pop(node))
                group = waiting.setdefault(node, [])
            group.append(job)
        for node, group in waiting.items():
            self._send(turn, node, group)
        turn.packer = Packer()  # what it holds of the last message is not needed while replies come

    def _send(self, turn: _Round, node: NodeId, jobs: list[_Job]) -> None:
        about = {
            "run": self._run,
            "work": turn.work,
            "round": turn.round,
            "seed": self._seed,
            "agreement": self._agreement.described(),
        }
        now = self._clock.now()
        left = _DAY if turn.deadline is None else max(turn.deadline - now, 0.0) + _GRACE
        content = turn.packer.pack(about, [Part(self._head(job.client), job.packet) for job in jobs])
        message = Message(content, node, _TYPES[turn.work], ttl=left, group_id=str(turn.round + 1))
        try:
            identifiers = [i for i in self._grid.push_messages([message]) if i]
        except Exception as error:  # whatever Flower's transport raises; it has tried again by itself
            identifiers = []
            self.notes.warn(f"a message to node {node} could not be sent: {type(error).__name__}: {error}")
        bundle = _Bundle(node, jobs, self.roster.arrivals(node), identifiers[0] if identifiers else "")
        for job in jobs:
            job.attempts += 1
            if identifiers:
                job.bundle, job.unsent_since = bundle, None
            else:
                job.unsent_since = now if job.unsent_since is None else job.unsent_since
                job.not_before = now + min(2.0**job.attempts, 30.0)
        if identifiers:
            turn.bundles[bundle.identifier] = bundle

    def _head(self, client: str) -> dict[str, Any]:
        version = self._versions.get(client)
        keep = {v[client] for v in (self._kept, self._saved) if client in v} - {version}
        return {"client": client, "memory": version, "keep": sorted(keep), "lost": self._patience.lost_memory}

    # receiving

    def _collect(self, turn: _Round) -> bool:
        """Takes the replies whose turn is near; whether there were any."""
        heard = False
        for identifier in self._near(turn):
            heard |= self._pull(turn, identifier)
        return heard

    def _pull(self, turn: _Round, identifier: str) -> bool:
        """Takes the reply to a message; whether it was there.

        One at a time: Flower drops what it pulls together with bytes that it cannot read, and whose reply it is would
        stand only in the reply itself, where a node can write what it likes.
        """
        try:
            with bounded(self._limits.message_bytes):
                replies = list(self._grid.pull_messages([identifier]))
        except PacketError as error:  # it is too large, and would be so again
            for job in turn.bundles.pop(identifier).jobs:
                job.done, job.bundle = Failure(job.client, "reply", f"client {job.client!r}: {error}"), None
            return True
        except Exception as error:  # hostile bytes are met within Flower's own code
            reason = f"its reply cannot be received: {type(error).__name__}: {printable(str(error), 500)}"
            self._undelivered(turn, turn.bundles[identifier], reason)
            return True
        for reply in replies:
            self._accept(turn, identifier, reply)
        return bool(replies)

    def _near(self, turn: _Round) -> list[str]:
        """The messages whose replies are asked for: those that come next, as far as there is room for their replies."""
        found: dict[str, None] = {}
        held = 0
        for job in turn.order:
            if job.bundle is not None and job.done is None:
                found[job.bundle.identifier] = None
            held += max(job.packet.data_nbytes, turn.largest)
            if held > self._patience.ahead_bytes or len(found) == _WINDOW:
                break
        return list(found)

    def _accept(self, turn: _Round, identifier: str, reply: Any) -> None:
        bundle = turn.bundles.pop(identifier, None)
        if bundle is None:
            self.notes.warn(f"node {reply.metadata.src_node_id} sent a reply that nobody waits for")
            return
        if reply.has_error():
            reason = f"Flower's error {reply.error.code}: {printable(reply.error.reason)}"
            if reply.error.code == 5:  # its node is away
                self.roster.forget(bundle.node, "is away")
            if reply.error.code in TRANSIENT:
                self._undelivered(turn, bundle, reason)
            else:
                self._fail(bundle, "node", reason)
            return
        expected = {"work": turn.work, "round": turn.round, "run": self._run}
        direct = reply.metadata.src_node_id == bundle.node and reply.metadata.reply_to_message_id == identifier
        for job, (result, head) in zip(
            bundle.jobs,
            read_replies(
                reply.content if direct else None,
                [(j.client, j.packet) for j in bundle.jobs],
                expected,
                self._limits,
            ),
            strict=True,
        ):
            job.done, job.version = result, head.get("memory")
            if isinstance(result, Reply):
                turn.largest = max(turn.largest, result.packet.data_nbytes)
            new = isinstance(result, Reply) and job.version not in (None, self._versions.get(job.client))
            if new and not is_version(job.version, step_of(turn.work, turn.round)):
                text = f"client {job.client!r}: its memory is {str(job.version)[:40]!r}, which is not of this round"
                job.done = Failure(job.client, "reply", text)
            if isinstance(head.get("note"), str):
                self.notes.warn(printable(head["note"], 500))
            job.bundle = None  # else jobs and bundle would hold each other, packets and replies with them

    def _finished(self, job: _Job) -> Reply | Failure:
        assert job.done is not None  # only finished jobs come here
        if isinstance(job.done, Reply):
            if job.version is None:
                self._versions.pop(job.client, None)
            else:
                self._versions[job.client] = job.version
        return job.done

    # those who do not deliver

    def _undelivered(self, turn: _Round, bundle: _Bundle, reason: str) -> None:
        turn.bundles.pop(bundle.identifier, None)
        who = ", ".join(repr(job.client) for job in bundle.jobs[:5])
        self.notes.warn(f"node {bundle.node} did not deliver the work of {who}: {reason}")
        for job in bundle.jobs:
            job.bundle, job.away_since = None, self._clock.now()
            if job.attempts >= self._patience.attempts:
                job.done = Failure(job.client, "node", f"{reason} (sent {job.attempts} times)")

    def _fail(self, bundle: _Bundle, stage: str, reason: str) -> None:
        for job in bundle.jobs:
            job.done, job.bundle = Failure(job.client, stage, reason), None

    def _mend(self, turn: _Round) -> None:
        """Sends again what was lost with its node, as far as the clients are there again."""
        if not self._look():
            return
        lost = {job.bundle.identifier: job.bundle for job in turn.order if job.bundle and self._is_lost(job.bundle)}
        for identifier, bundle in lost.items():
            turn.bundles.pop(identifier, None)
            for job in bundle.jobs:
                job.bundle = None
                if job.done is None and job.attempts >= self._patience.attempts:
                    text = (
                        f"its node was started again, or replaced, each time it had the job (sent {job.attempts} times)"
                    )
                    job.done = Failure(job.client, "node", text)
        now, again = self._clock.now(), {}  # type: float, dict[NodeId, list[_Job]]
        for job in turn.order:
            node = self.roster.where(job.client)
            if job.done is not None or (job.bundle is not None and node is not None):
                job.away_since = None
            elif node is None:
                self._away(turn, job, now)
            elif job.unsent_since is not None and now - job.unsent_since >= self._patience.absence:
                job.done = Failure(job.client, "node", f"its job could not be sent {job.attempts} times; see the notes")
            elif now >= job.not_before:
                again.setdefault(node, []).append(job)
        for node, jobs in again.items():
            self._send(turn, node, jobs)

    def _look(self) -> bool:
        """Sees who is there; whether that could be seen."""
        try:
            self.roster.refresh()
        except Exception as error:  # whatever Flower's transport raises; it has tried again by itself
            note = f"the nodes cannot be listed: {type(error).__name__}: {error}"
            if note != self.notes.last:
                self.notes.warn(note)
            return False
        return True

    def _is_lost(self, bundle: _Bundle) -> bool:
        """Whether its node came back after the message was sent, or another one took over a client."""
        holders = {self.roster.where(job.client) for job in bundle.jobs if job.done is None} - {None}
        return bool(holders - {bundle.node}) or (
            bundle.node in holders and self.roster.arrivals(bundle.node) != bundle.arrivals
        )

    def _away(self, turn: _Round, job: _Job, now: float) -> None:
        job.away_since = now if job.away_since is None else job.away_since
        if now >= max(turn.absence_ends, job.away_since + self._patience.absence if job.attempts else 0.0):
            which = "left and did not come back" if job.attempts else "is not there"
            job.done = Failure(job.client, "node", f"its node {which} (waited {self._patience.absence:g} s)")

    def _over(self, turn: _Round) -> bool:
        return turn.deadline is not None and self._clock.now() >= turn.deadline

    def _give_up(self, turn: _Round) -> None:
        """After the deadline: what is near and still not there has failed."""
        near = set(self._near(turn))
        for job in turn.order:
            late = job.bundle is None or job.bundle.identifier in near
            if job.done is None and late:
                job.done = Failure(job.client, "timeout", f"no reply within {self._patience.timeout:g} s")
