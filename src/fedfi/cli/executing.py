"""One run of an experiment in a run directory, whichever command asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedfi.experiment import Experiment
from fedfi.federation.run import run
from fedfi.federation.task import Task
from fedfi.trackers import tracked


def execute(
    experiment: Experiment,
    task: Task,
    out: Path,
    *,
    done: int | None,
    observe: Callable[[Mapping[str, Any]], None],
    workers: int = 1,
) -> None:
    """Runs an experiment, or goes on with it.

    Args:
        experiment: What to run.
        task: Its task.
        out: The run directory.
        done: Rounds behind us; None: the run is new.
        observe: Called with the numbers of each round.
        workers: Processes that do client work.

    Raises:
        InputError: As `fedfi.run`, or if a package is missing to which numbers shall be copied.
        RunError: As `fedfi.run`.
    """
    settings, config = experiment.settings, experiment.resolved()
    with tracked(settings.log, out, config, done) as track:

        def tell(line: Mapping[str, Any]) -> None:
            observe(line)
            track(line)

        run(
            experiment.algorithm(),
            task,
            rounds=settings.rounds,
            seed=settings.seed,
            workers=workers,
            out=out,
            evaluate=settings.evaluate,
            min_replies=settings.min_replies,
            checkpoint_every=settings.checkpoint_every,
            resume=done is not None,
            config=config,
            observe=tell,
        )
