"""Work on many clients of a node at once, for methods that have it: the same bits as where one process holds them all.

Their memory is read from disk into a table, the method works on its rows as it does on one machine, and what changed
is written back, client by client, when all is done. A client's result does not depend on who else is in its message.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

import torch

from fedfi.engines.cohorts import BLOCK, Cohorts
from fedfi.engines.table import MemoryTable
from fedfi.engines.workplace import Outcome, Workplace
from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.engine import Work
from fedfi.federation.failing import cause
from fedfi.federation.packet import Packet, Tree


def works_together(place: Workplace, work: Work) -> bool:
    """Whether the method does this work for many clients at once."""
    return _cohorts(place, MemoryTable([])).does(work)


def outcomes_of(
    place: Workplace, work: Work, round: int, jobs: Sequence[tuple[str, Packet]], stored: Mapping[str, Tree]
) -> dict[str, Outcome]:
    """What each job came to, by client; if work on all of them fails, each is tried alone, to see whose fault it is.

    Args:
        place: Where.
        work: What.
        round: Of the run, from 0.
        jobs: Clients and their packets, no client twice.
        stored: What each of them remembers.
    """
    if not jobs:
        return {}
    table = MemoryTable(list(place.task.data.clients))
    for client, _ in jobs:
        table.commit(client, stored[client])
    try:
        replies = list(_cohorts(place, table).map(work, jobs, round))
    except Exception as error:
        if len(jobs) > 1:
            return {c: o for job in jobs for c, o in outcomes_of(place, work, round, [job], stored).items()}
        return {jobs[0][0]: Outcome(Failure(jobs[0][0], work, cause(error), traceback.format_exc()))}
    return {reply.client: _outcome(reply, table, stored[reply.client]) for reply in replies}


def _outcome(reply: Reply | Failure, table: MemoryTable, before: Tree) -> Outcome:
    if isinstance(reply, Failure):
        return Outcome(reply)
    now = table.row(reply.client)
    changed = {n: t for n, t in now.items() if n not in before or not torch.equal(before[n], t)}
    return Outcome(reply, changed, frozenset(before.keys() - now.keys()))


def _cohorts(place: Workplace, table: MemoryTable) -> Cohorts:
    return Cohorts(place.algorithm, place.task, place.seed, table, workers=1, block=BLOCK)
