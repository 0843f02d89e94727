"""Where one process does client work: a task, a method and one model instance, used for client after client."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from fedfi.data.federated import ClientData
from fedfi.errors import InputError, RunError, first_line
from fedfi.federation.algorithm import (
    Algorithm,
    DeploysNetwork,
    EvaluatesClients,
    Failure,
    HasLevels,
    Negotiates,
    Reply,
)
from fedfi.federation.client import Client, Memory
from fedfi.federation.engine import Judged, Split, Work
from fedfi.federation.evaluation import examples_of, sums, take_statistics
from fedfi.federation.failing import cause
from fedfi.federation.hooks import check_metrics, check_packet
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task
from fedfi.federation.workbench import Benches, Workbench
from fedfi.importing import place


@dataclass(frozen=True)
class Job:
    """One piece of client work, with the client's memory as it is before."""

    work: Work
    client: str
    round: int
    packet: Packet
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a job came to: the reply or the failure, and what of the client's memory changed."""

    reply: Reply | Failure
    changed: Tree = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


class Workplace:
    """Does jobs one after the other, on one torch thread, so that a result does not depend on the place."""

    def __init__(self, algorithm: Algorithm[Any], task: Task, seed: int) -> None:
        self.algorithm, self.task, self.seed = algorithm, task, seed
        self.benches = Benches(task, seed)

    def client(self, job: Job) -> Client:
        """The client of a job, on a clean workbench."""
        if job.client not in self.task.data.clients:
            raise InputError(f"there is no client {job.client!r}")
        self.benches.reset()
        return Client(
            id=job.client,
            data=cast("ClientData", self.task.data.clients[job.client]),  # methods of ratings look at it as such
            memory=Memory(job.memory),
            task=self.task,
            benches=self.benches,
            round=job.round,
            seed=self.seed,
            device=self.task.device,
        )

    def do(self, job: Job) -> Outcome:
        """Does a job; an error of the client's work becomes a `Failure`."""
        started = time.perf_counter()
        try:
            with one_thread(), keyed_global_rng(self.seed, "client", job.round, job.client, job.work):
                client = self.client(job)
                packet = self._work(job, client)
        except Exception as error:
            return Outcome(Failure(job.client, job.work, cause(error), traceback.format_exc()))
        reply = Reply(job.client, packet, time.perf_counter() - started)
        return Outcome(reply, client.memory.changed, frozenset(client.memory.removed))

    def _work(self, job: Job, client: Client) -> Packet:
        method = self.algorithm
        if job.work == "client_update":
            return check_packet(method, job.work, method.client_update(job.packet, client)).cpu()
        if job.work == "client_negotiate" and isinstance(method, Negotiates):
            return check_packet(method, job.work, method.client_negotiate(job.packet, client)).cpu()
        if not isinstance(method, EvaluatesClients):
            raise InputError(f"{type(method).__name__} does not evaluate on clients")
        metrics = method.client_evaluate(job.packet, client)
        return Packet(scalars=check_metrics(method, job.work, metrics, "numbers by name"))

    def judge(self, what: Judged, packet: Packet, split: Split, start: int, stop: int) -> dict[str, float]:
        """Sums of the evaluation of a model over a piece of the server's examples."""
        examples = examples_of(self.task.data, split)
        try:
            with one_thread():
                module = self._loaded(what, packet).module
                if (own := self.task.examples.validation) is not None:
                    take_statistics(self.task, module, own, renew=self.algorithm.mixes_networks())
                return sums(self.task, module, examples, start, stop)
        except Exception as error:
            raise RunError(f"evaluation failed: {first_line(error)}{place(error)}") from error

    def _loaded(self, what: Judged, packet: Packet) -> Workbench:
        self.benches.reset()
        if what == "level":
            if not isinstance(self.algorithm, HasLevels):
                raise InputError(f"{type(self.algorithm).__name__} makes no submodels")
            return self.algorithm.place(packet, self.benches)
        if isinstance(self.algorithm, DeploysNetwork):
            return self.algorithm.deploy(packet, self.benches)
        self.benches.whole.load(packet.tensors)
        return self.benches.whole


class one_thread:
    """Within it, torch uses one thread."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._before != 1:
            torch.set_num_threads(self._before)
