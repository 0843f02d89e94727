"""Worker processes: each does jobs on one torch thread and its own model instance; packets go through shared memory.

Workers are forked where the platform forks safely (Linux without CUDA), so that the data are shared without a copy
and models or data sets need not be importable; elsewhere they are spawned. A worker that dies is replaced, and its
job becomes a `Failure`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedfi.engines.arena import Arena
from fedfi.engines.workplace import Job, Outcome, Workplace
from fedfi.errors import RunError
from fedfi.federation.algorithm import Algorithm, Failure, Reply
from fedfi.federation.engine import Judged, Split
from fedfi.federation.packet import Packet
from fedfi.federation.task import Task
from fedfi.orphans import die_with

_CHANGED = "memory:"
Request = Job | tuple[Judged, Packet, Split, int, int]
"""A job, or (what, model, split, start, stop) to judge a model on a piece of the server's examples."""


class Pool:
    """A fixed number of workers, started at the first use."""

    def __init__(self, algorithm: Algorithm[Any], task: Task, seed: int, workers: int) -> None:
        self._what = (algorithm, task, seed)
        self._count = workers
        self._workers: list[_Worker] = []

    def map(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Results in the order of `requests`, which is consumed only as fast as workers get free.

        Yields an `Outcome` for each job, and sums for each piece of an evaluation.
        """
        if not self._workers:
            self._workers = [_Worker(*self._what) for _ in range(self._count)]
        source = enumerate(requests)
        idle, busy = deque(self._workers), {}  # type: deque[_Worker], dict[_Worker, tuple[int, Request]]
        done: dict[int, Any] = {}
        turn, exhausted = 0, False
        try:
            while True:
                while idle and not exhausted and len(done) < 4 * self._count:
                    item = next(source, None)
                    if item is None:
                        exhausted = True
                        break
                    worker = idle.popleft()
                    worker.send(item[1])
                    busy[worker] = item
                while turn in done:
                    yield done.pop(turn)
                    turn += 1
                if not busy:
                    if exhausted and not done:
                        return
                    continue
                for ready in wait([w.connection for w in busy]):
                    worker = next(w for w in busy if w.connection is ready)
                    number, request = busy.pop(worker)
                    try:
                        done[number] = worker.receive(request)
                    except (EOFError, ConnectionError):
                        done[number] = _died(request, worker)
                        worker = self._replace(worker)
                    idle.append(worker)
        finally:
            for worker in busy:  # an abandoned iteration leaves replies that nobody waits for
                self._replace(worker)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _replace(self, worker: _Worker) -> _Worker:
        worker.end(kill=True)
        fresh = _Worker(*self._what)
        self._workers[self._workers.index(worker)] = fresh
        return fresh


def _died(request: Request, worker: _Worker) -> Outcome:
    if not isinstance(request, Job):
        raise RunError("a worker process died while it evaluated a model; is there enough memory?")
    worker.process.join(5)
    text = f"the worker process died (exit code {worker.process.exitcode}); is there enough memory?"
    return Outcome(Failure(request.client, "worker", text))


class _Worker:
    """The near side of one worker process."""

    def __init__(self, algorithm: Algorithm[Any], task: Task, seed: int) -> None:
        context: Any = multiprocessing.get_context(_start_method())
        self.connection, far = context.Pipe()
        self._outgoing, self._incoming = Arena(), Arena()
        arguments = (os.getpid(), algorithm, task, seed, far, str(self._outgoing.path), str(self._incoming.path))
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        with warnings.catch_warnings():  # newer Pythons warn of forking while torch's idle threads exist
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        far.close()
        self.connection.recv()  # the worker has both arenas open
        self._outgoing.forget_name()
        self._incoming.forget_name()

    def send(self, request: Request) -> None:
        message: tuple[Any, ...]
        if isinstance(request, Job):
            memory = {_CHANGED + k: t for k, t in request.memory.items()}
            packet = Packet({**request.packet.tensors, **memory}, request.packet.scalars, request.packet.blobs)
            message = ("job", request.work, request.client, request.round)
        else:
            what, packet, *rest = request
            message = ("judge", what, *rest)
        length = self._outgoing.write(packet)
        with contextlib.suppress(OSError):  # a dead worker: `receive` meets the end of the pipe and says so
            self.connection.send((*message, length))

    def receive(self, request: Request) -> Any:
        kind, *content = self.connection.recv()
        if kind == "sums":
            return content[0]
        if kind == "error":
            raise RunError(content[0])
        if kind == "failure":
            return Outcome(Failure(*content))
        seconds, removed, length = content
        packet = self._incoming.read(length).clone()
        own = {k: t for k, t in packet.tensors.items() if not k.startswith(_CHANGED)}
        changed = {k.removeprefix(_CHANGED): t for k, t in packet.tensors.items() if k.startswith(_CHANGED)}
        assert isinstance(request, Job)
        reply = Reply(request.client, Packet(own, packet.scalars, packet.blobs), seconds)
        return Outcome(reply, changed, frozenset(removed))

    def end(self, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        else:
            with contextlib.suppress(OSError):
                self.connection.send(None)  # siblings forked later hold this pipe too, so closing says nothing
        self.connection.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._outgoing.close()
        self._incoming.close()


def _serve(
    parent: int, algorithm: Algorithm[Any], task: Task, seed: int, connection: Connection, inbox: str, outbox: str
) -> None:
    from pathlib import Path

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    incoming, outgoing = Arena(Path(inbox)), Arena(Path(outbox))
    connection.send("ready")
    workplace = Workplace(algorithm, task, seed)
    while True:
        try:
            message = connection.recv()
        except (EOFError, ConnectionError):
            return
        if message is None:
            return
        kind, *content, length = message
        packet = incoming.read(length)
        if kind == "judge":
            what, split, start, stop = content
            try:
                connection.send(("sums", workplace.judge(what, packet, split, start, stop)))
            except RunError as error:
                connection.send(("error", str(error)))
            continue
        work, client, round = content
        tensors = {k: t for k, t in packet.tensors.items() if not k.startswith(_CHANGED)}
        memory = {k.removeprefix(_CHANGED): t for k, t in packet.tensors.items() if k.startswith(_CHANGED)}
        outcome = workplace.do(Job(work, client, round, Packet(tensors, packet.scalars, packet.blobs), memory))
        if isinstance(outcome.reply, Failure):
            failure = outcome.reply
            connection.send(("failure", failure.client, failure.stage, failure.error, failure.traceback))
            continue
        reply = outcome.reply.packet
        changed = {_CHANGED + k: t for k, t in outcome.changed.items()}
        length = outgoing.write(Packet({**reply.tensors, **changed}, reply.scalars, reply.blobs))
        connection.send(("reply", outcome.reply.seconds, sorted(outcome.removed), length))


def _start_method() -> str:
    return "fork" if sys.platform == "linux" and not torch.cuda.is_initialized() else "spawn"
