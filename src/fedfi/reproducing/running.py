"""All of a grid: what is not tuned is tuned, what is not there is run, side by side, and the results are written."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfi import linechart
from fedfi.errors import RunError
from fedfi.federation.task import Task
from fedfi.parallel import Tell, Work, in_processes
from fedfi.progress import progress
from fedfi.reproducing import followers, performing, tables, tuning
from fedfi.reproducing.grid import Grid, said
from fedfi.reproducing.jobs import Job, missing
from fedfi.reproducing.performing import Tasks


@dataclass(frozen=True)
class Kind:
    """What is measured of a run.

    Attributes:
        perform: Runs a job and writes its file; says what it came to.
        write: Writes what all runs came to into the grid's directory; gives back the table.
    """

    perform: Callable[[Job, Task, Tell], str]
    write: Callable[[Grid, Path], str]


KINDS = {
    "methods": Kind(performing.perform, tables.write),
    "followers": Kind(followers.perform, followers.write),
}


@dataclass(frozen=True)
class Options:
    """How a grid is run; none of it changes a result.

    Attributes:
        workers: Runs side by side.
        only: Labels of methods; None for all.
        minutes: After so many, no run of a later seed is begun.
        quiet: Print nothing.
    """

    workers: int = 1
    only: Collection[str] | None = None
    minutes: float = math.inf
    quiet: bool = False


def reproduce(grid: Grid, out: Path, options: Options, tune_only: bool = False) -> str | None:
    """Tunes and runs what is missing of a grid, and writes its results.

    Args:
        grid: The grid.
        out: Its directory; what is there is kept.
        options: How.
        tune_only: Stop after tuning.

    Returns:
        The table, in Markdown; none after tuning only.

    Raises:
        InputError: If an experiment is not valid, `out` holds other runs, or a chart is asked for without matplotlib.
        RunError: If runs failed; all others are done.
    """
    until = time.monotonic() + 60 * options.minutes
    if grid.head.traffic:
        linechart.check_installed()
    (out / "runs").mkdir(parents=True, exist_ok=True)
    _tune(grid, out, options)
    if tune_only:
        return None
    failed = _run(grid, out, options, until)
    table = KINDS[grid.head.kind].write(grid, out)
    if failed:
        raise RunError(f"{out}: {len(failed)} runs failed, all others are done: {', '.join(failed)}")
    return table


def _tune(grid: Grid, out: Path, options: Options) -> None:
    found = tuning.Tuning(grid, out)
    trials = found.trials(options.only)
    if not trials:
        return
    names = [f"{trial.key} at {said(trial.choice)}" for trial in trials]
    rounds = sum(trial.experiment.settings.rounds for trial in trials)
    _say(f"{len(trials)} runs of tuning", options)
    works = tuning.works(grid, trials, Tasks(options.quiet))
    failed = _spread(works, names, rounds, options, lambda number, text: found.keep(trials[number], float(text)))
    if failed:
        raise RunError(f"{out}: {len(failed)} runs of tuning failed, all others are done: {', '.join(failed)}")
    for text in found.doubts(options.only):
        _say(text, options)


def _run(grid: Grid, out: Path, options: Options, until: float) -> list[str]:
    jobs = missing(grid, out, options.only)
    _say(f"{len(jobs)} runs", options)
    if not jobs:
        return []
    begun: list[Job] = []
    left: list[Job] = []
    perform = KINDS[grid.head.kind].perform

    def works() -> Iterator[Work]:
        tasks = Tasks(options.quiet)
        for job in jobs:
            if job.cell.seed != grid.seeds[0] and time.monotonic() > until:
                left.append(job)
                continue
            task = tasks.of(job.experiment, job.tables)
            begun.append(job)
            names.append(job.cell.name)
            yield functools.partial(perform, job, task)

    names: list[str] = []
    failed = _spread(works(), names, sum(job.experiment.settings.rounds for job in jobs), options)
    if left:
        _say(f"{len(left)} runs left for another time", options)
    return failed


def _spread(
    works: Iterator[Work],
    names: Sequence[str],
    rounds: int,
    options: Options,
    keep: Callable[[int, str], None] = lambda number, text: None,
) -> list[str]:
    """Does all the work and tells of it; gives back what failed.

    Args:
        works: The work.
        names: What it is called, as far as it has begun.
        rounds: Of all of it.
        options: How.
        keep: Called with the position and the result of each.
    """
    failed = []
    with progress(rounds, quiet=options.quiet, unit="rounds in all") as observe:
        for number, kind, text in in_processes(works, options.workers):
            if kind == "round":
                observe({"text": f"{names[number]}: {text}"})
                continue
            if kind == "result":
                keep(number, text)
                _say(f"{names[number]}: {text}", options)
            else:
                failed.append(names[number])
                print(f"{names[number]}: {text}", file=sys.stderr, flush=True)
    return failed


def _say(text: str, options: Options) -> None:
    if not options.quiet:
        print(text, file=sys.stderr, flush=True)
