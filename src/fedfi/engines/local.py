"""The engine of one machine: client after client in this process, or spread over worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedfi.engines.cohorts import BLOCK, Cohorts
from fedfi.engines.pool import Pool, Request
from fedfi.engines.table import MemoryTable
from fedfi.engines.workplace import Job, Outcome, Workplace
from fedfi.errors import InputError
from fedfi.federation.algorithm import Algorithm, Failure, Reply
from fedfi.federation.client import Client
from fedfi.federation.engine import Judged, Split, Work
from fedfi.federation.evaluation import examples_of, means, shards
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.task import Task


class LocalEngine:
    """Runs every client on this machine.

    Args:
        algorithm: The method.
        task: Model, data, recipe.
        seed: The run's seed.
        workers: 1 works in this process; more are processes with one torch thread each. The result is the same
            to the bit. Methods that do many clients at once use threads instead.
        cohorts: Clients that such a method is given at once; 0 has it do client after client like the others.
    """

    def __init__(
        self, algorithm: Algorithm[Any], task: Task, *, seed: int = 0, workers: int = 1, cohorts: int = BLOCK
    ) -> None:
        self._task, self._algorithm = task, algorithm
        self._workplace = Workplace(algorithm, task, seed)
        self._pool = Pool(algorithm, task, seed, workers) if workers > 1 else None
        self._table = MemoryTable(self.clients())
        self._cohorts = Cohorts(algorithm, task, seed, self._table, workers, cohorts) if cohorts else None

    def clients(self) -> Sequence[str]:
        """All clients of the task, in its order."""
        return list(self._task.data.clients)

    def map(self, work: Work, jobs: Iterable[tuple[str, Packet]], round: int) -> Iterator[Reply | Failure]:
        """Has each job done; yields in the order of `jobs`."""
        if self._cohorts and self._cohorts.does(work):
            yield from self._cohorts.map(work, jobs, round)
            return
        prepared = self._prepared(work, jobs, round)
        outcomes = self._pool.map(prepared) if self._pool else map(self._workplace.do, prepared)
        for outcome in outcomes:
            yield self._committed(outcome)

    def evaluate(
        self, what: Judged, models: Iterable[tuple[str, Packet]], split: Split
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Means of the evaluation of each model over the server's examples."""
        examples = examples_of(self._task.data, split)
        pieces = shards(examples)
        names: list[str] = []

        def requests() -> Iterator[Request]:
            for name, model in models:
                names.append(name)
                for start, stop in pieces:
                    yield (what, model, split, start, stop)

        if self._pool:
            results = self._pool.map(requests())
        else:
            results = (self._workplace.judge(*r) for r in requests() if not isinstance(r, Job))
        parts: list[dict[str, float]] = []
        for part in results:
            parts.append(part)
            if len(parts) == len(pieces):
                yield names.pop(0), means(parts)
                parts = []

    def client(self, client: str, packet: Packet, round: int) -> Client:
        """A client as its work would see it now; what it writes to its memory is not kept."""
        return self._workplace.client(Job("client_evaluate", client, round, packet, self._table.row(client)))

    def memory_of(self, client: str) -> Tree:
        """Copies of what a client has in its memory."""
        return {name: value.clone() for name, value in self._table.row(client).items()}

    def memory(self) -> Mapping[str, Any]:
        """The table of all clients' memory."""
        return self._table.describe()

    def restore(self, memory: Mapping[str, Any], round: int) -> None:
        """Puts the table back."""
        self._table.restore(memory)

    def close(self) -> None:
        """Ends the workers."""
        if self._pool:
            self._pool.close()
        if self._cohorts:
            self._cohorts.close()

    def _prepared(self, work: Work, jobs: Iterable[tuple[str, Packet]], round: int) -> Iterator[Job]:
        for client, packet in jobs:
            yield Job(work, client, round, packet, self._table.row(client))

    def _committed(self, outcome: Outcome) -> Reply | Failure:
        reply = outcome.reply
        if isinstance(reply, Reply):
            try:
                self._table.commit(reply.client, outcome.changed, outcome.removed)
            except InputError as error:
                return Failure(reply.client, "client_update", str(error))
        return reply
