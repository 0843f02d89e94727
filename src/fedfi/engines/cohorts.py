"""Work on many clients at once: a round's jobs in blocks, block after block, or some of them in threads.

A block is small enough that what is computed for it stays in the processor's caches, and that replies which hold a
whole model each are folded before the next block's are made. Each block is done on one torch thread, and no client's
result depends on its block, so neither the size of blocks nor the number of threads changes a bit. Where clients are
sent large tensors, which a method may copy for each of them, blocks are smaller: beyond some 30 MB the C library takes
memory from the system anew each time, page by page, and a round of copies takes twice as long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import torch

from fedfi.engines.table import MemoryTable
from fedfi.engines.workplace import one_thread
from fedfi.errors import InputError, RunError
from fedfi.federation.algorithm import Algorithm, EvaluatesCohorts, Failure, Reply, UpdatesCohorts
from fedfi.federation.cohort import Cohort
from fedfi.federation.engine import Work
from fedfi.federation.packet import Packet
from fedfi.federation.task import Task

BLOCK = 128
_BYTES, _LEAST = 24 << 20, 8
"""What the packets of a block hold together at most, unless it has but a few clients."""


class Cohorts:
    """Does jobs of methods that take many clients at once."""

    def __init__(
        self, algorithm: Algorithm[Any], task: Task, seed: int, table: MemoryTable, workers: int, block: int
    ) -> None:
        self._algorithm, self._task, self._seed, self._table = algorithm, task, seed, table
        self._threads = workers
        self._block = block
        self._executor: ThreadPoolExecutor | None = None

    def does(self, work: Work) -> bool:
        """Whether the method has a way of doing this for many clients at once."""
        return isinstance(self._algorithm, UpdatesCohorts if work == "client_update" else EvaluatesCohorts)

    def map(self, work: Work, jobs: Iterable[tuple[str, Packet]], round: int) -> Iterator[Reply | Failure]:
        """Replies in the order of `jobs`, which are consumed block by block.

        Raises:
            RunError: If the work on a block fails; its clients' memory may then be half written, so the run ends, and
                goes on from its last checkpoint.
        """
        blocks = self._blocks(jobs)
        if self._threads == 1:
            for block in blocks:
                yield from self._do(work, block, round)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
        waiting: deque[Future[list[Reply | Failure]]] = deque()
        for block in blocks:
            waiting.append(self._executor.submit(self._done, work, block, round))
            if len(waiting) > self._threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()

    def _blocks(self, jobs: Iterable[tuple[str, Packet]]) -> Iterator[list[tuple[str, Packet]]]:
        source = iter(jobs)
        for first in source:
            most = max(_LEAST, _BYTES // max(1, first[1].data_nbytes))
            yield list(islice(chain([first], source), min(self._block, most)))

    def close(self) -> None:
        """Ends the threads."""
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _done(self, work: Work, block: list[tuple[str, Packet]], round: int) -> list[Reply | Failure]:
        return list(self._do(work, block, round))

    def _do(self, work: Work, block: list[tuple[str, Packet]], round: int) -> Iterator[Reply | Failure]:
        started = time.perf_counter()
        ids, packets = [c for c, _ in block], [p for _, p in block]
        cohort = Cohort(
            ids, packets, self._table.rows(ids), self._table, self._task, round, self._seed, self._task.device
        )
        try:
            with one_thread():
                replies = self._replies(work, cohort)
        except (InputError, RunError):
            raise
        except Exception as error:
            name = type(self._algorithm).__name__
            raise RunError(
                f"{name}, {work} of clients {ids[0]!r} to {ids[-1]!r}: {type(error).__name__}: {error}"
            ) from error
        if len(replies) != len(ids):
            raise RunError(f"{type(self._algorithm).__name__} made {len(replies)} replies of {len(ids)} clients")
        each = (time.perf_counter() - started) / len(ids)
        return (
            Failure(c, work, "its values are not numbers") if p is None else Reply(c, p, each)
            for c, p in zip(ids, replies, strict=True)
        )

    def _replies(self, work: Work, cohort: Cohort) -> list[Packet | None]:
        if work == "client_update":
            assert isinstance(self._algorithm, UpdatesCohorts)
            return list(self._algorithm.cohort_update(cohort))
        assert isinstance(self._algorithm, EvaluatesCohorts)
        values = self._algorithm.cohort_evaluate(cohort)
        failed = torch.stack(list(values.values())).isnan().any(0).tolist()
        numbers = zip(*(v.tolist() for v in values.values()), strict=True)
        return [
            None if bad else Packet(scalars=dict(zip(values, each, strict=True)))
            for bad, each in zip(failed, numbers, strict=True)
        ]
