"""A federation in this process: real Flower messages, really serialised, and faults on demand; time is made up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedfi[flower]'")

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content
from flwr.supercore.task_identity import TaskIdentity

from fedfi.engines.flower.agreement import Agreement
from fedfi.engines.flower.engine import FlowerEngine
from fedfi.engines.flower.node import Node, clients_of_partition, node_app
from fedfi.engines.flower.roster import Clock

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower's own processes do


def over_the_wire(message: Message) -> Message:
    """What arrives at the other side: objects by content, chunked, and put together again."""
    contents = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
    for content in contents.values():
        validate_object_content(content)
    return inflate_object_from_contents(message.object_id, contents)


@dataclasses.dataclass
class Deflated:
    """A reply as it lies in the SuperLink, so that a fault can change its bytes.

    Attributes:
        reply_to: The message that it is the reply to, as the SuperLink knows it, whatever the reply says of itself.
        name: Of the whole.
        contents: The bytes of each of its objects, by name.
    """

    reply_to: str
    name: str
    contents: dict[str, bytes]

    @staticmethod
    def of(reply: Message) -> Deflated:
        contents = {name: thing.deflate() for name, thing in get_all_nested_objects(reply).items()}
        return Deflated(reply.metadata.reply_to_message_id, reply.object_id, contents)

    def inflated(self) -> Message:
        for content in self.contents.values():
            validate_object_content(content)
        return inflate_object_from_contents(self.name, dict(self.contents))


class Time:
    """A clock that sleeping sets forward."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclasses.dataclass
class Machine:
    """A node: its app, and what it is told of itself."""

    app: object
    config: dict
    online: bool = True
    activated: str = ""
    run_config: dict = dataclasses.field(default_factory=dict)

    def run(self, message: Message, node: int) -> Message:
        context = Context(1, node, self.config, RecordDict(), self.run_config)
        try:
            return self.app(message, context)
        except Exception as error:  # as Flower's own process does
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)


class FakeGrid(Grid):
    """Flower's grid, with nodes in this process.

    Attributes:
        machines: The nodes by id.
        fault: Called with (node, message, reply) for each reply; gives the replies that arrive, each with the second
            at which it does. No reply is a node that died over the message.
        sent: Every message that was pushed.
    """

    def __init__(self, time: Time) -> None:
        self.time = time
        self.machines: dict[int, Machine] = {}
        self.fault: Callable[[int, Message, Message], list[tuple[float, Message | Deflated]]] | None = None
        self.sent: list[Message] = []
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Message] = {}
        self._replies: list[tuple[float, Message | Deflated]] = []
        self._claimed: dict[str, Message] = {}  # messages whose replies were given out, once, as the SuperLink does
        self._pushed: dict[str, Message] = {}

    def set_run(self, run) -> None:
        pass

    @property
    def run(self):
        return None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return [n for n, m in self.machines.items() if m.online]

    def get_nodes(self):
        return [NodeInfo(node_id=n, last_activated_at=self.machines[n].activated) for n in self.get_node_ids()]

    def push_messages(self, messages):
        found = []
        for message in messages:
            self.sent.append(message)
            arrived = over_the_wire(message)
            name = f"message-{next(self._numbers)}"
            arrived.metadata.__dict__["_message_id"] = name
            self._waiting[name] = self._pushed[name] = arrived
            found.append(name)
        return found

    def pull_messages(self, message_ids):
        wanted = set(message_ids)
        for name in [n for n in self._waiting if n in wanted]:
            message = self._waiting[name]
            machine = self.machines.get(message.metadata.dst_node_id)
            if machine is not None and machine.online:
                del self._waiting[name]
                self._answer(message, machine)
        now = self.time.seconds
        ready = [r for r in self._replies if _reply_to(r[1]) in wanted and r[0] <= now]
        self._replies = [r for r in self._replies if not any(r is other for other in ready)]
        gone = [
            Message(Error(3, "unavailable"), reply_to=self._claimed[name]) for name in wanted & self._claimed.keys()
        ]
        self._claimed |= {_reply_to(reply): self._pushed[_reply_to(reply)] for _, reply in ready}
        whole = [reply.inflated() if isinstance(reply, Deflated) else over_the_wire(reply) for _, reply in ready]
        return whole + ([] if whole else gone)

    def _answer(self, message: Message, machine: Machine) -> None:
        node = message.metadata.dst_node_id
        reply = machine.run(message, node)
        arriving = self.fault(node, message, reply) if self.fault else [(self.time.seconds, reply)]
        self._replies += arriving


def _reply_to(reply: Message | Deflated) -> str:
    return reply.reply_to if isinstance(reply, Deflated) else reply.metadata.reply_to_message_id


@dataclasses.dataclass
class Federation:
    """An engine and the nodes it works with."""

    grid: FakeGrid
    engine: FlowerEngine
    time: Time


def machine(algorithm, task, folder: Path, partition: int, partitions: int, **changes) -> Machine:
    """A node that holds its share of the task's clients, and keeps their memory in a folder of its own."""
    node = Node(
        algorithm,
        task,
        clients=clients_of_partition(list(task.data.clients), partition, partitions),
        agreement=changes.pop("agreement", Agreement.of(task, {})),
        memory=changes.pop("memory", folder / f"node-{partition}"),
        **changes,
    )
    config = {"partition-id": partition, "num-partitions": partitions}
    return Machine(node_app(lambda context: node), config)


def federation(algorithm, make_task, folder: Path, nodes: int = 4, grid: FakeGrid | None = None, **options):
    """Nodes, each with a task of its own as if in its own process, and an engine; all is fresh but a given grid."""
    time = grid.time if grid else Time()
    if grid is None:
        grid = FakeGrid(time)
        for i in range(nodes):
            grid.machines[100 + i] = machine(algorithm, make_task(), folder, i, nodes)
    task = make_task()
    engine = FlowerEngine(grid, algorithm, task, agreement=Agreement.of(task, {}), clock=time.clock(), **options)
    return Federation(grid, engine, time)


def run_app(app, grid: FakeGrid, run_config: dict) -> None:
    """Runs a `ServerApp` as Flower does."""
    app(grid, Context(1, 1, {}, RecordDict(), run_config))
