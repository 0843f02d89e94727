"""One run of an experiment in a run directory, whoever asks for it: a command, or a Flower app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedfi.experiment import Experiment
from fedfi.federation.engine import Engine
from fedfi.federation.loop import RunResult
from fedfi.federation.record import read_lines
from fedfi.federation.run import run
from fedfi.federation.task import Task
from fedfi.trackers import tracked


def execute(
    experiment: Experiment,
    task: Task,
    out: Path,
    *,
    resume: bool,
    observe: Callable[[Mapping[str, Any]], None],
    workers: int = 1,
    engine: Engine | None = None,
) -> RunResult:
    """Runs an experiment, or goes on with it.

    Args:
        experiment: What to run.
        task: Its task.
        out: The run directory.
        resume: Whether the run has begun there.
        observe: Called with the numbers of each round.
        workers: Processes that do client work.
        engine: Where clients live; by default a local engine with `workers`.

    Raises:
        InputError: As `fedfi.run`, or if a package is missing to which numbers shall be copied.
        RunError: As `fedfi.run`.
    """
    settings, config = experiment.settings, experiment.resolved()
    with tracked(settings.log, out, config, rounds_done(out) if resume else None) as track:

        def tell(line: Mapping[str, Any]) -> None:
            observe(line)
            track(line)

        return run(
            experiment.algorithm(),
            task,
            rounds=settings.rounds,
            seed=settings.seed,
            workers=workers,
            out=out,
            evaluate=settings.evaluate,
            min_replies=settings.min_replies,
            checkpoint_every=settings.checkpoint_every,
            resume=resume,
            engine=engine,
            config=config,
            observe=tell,
        )


def rounds_done(directory: Path) -> int:
    """Rounds in `metrics.jsonl`."""
    lines = read_lines(directory / "metrics.jsonl")
    return int(lines[-1]["round"]) if lines else 0
