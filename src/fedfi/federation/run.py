"""`fedfi.run`: checks what it is given, opens engine and run directory, and lets the loop go round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfi.arguments import named
from fedfi.engines.local import LocalEngine
from fedfi.engines.workplace import one_thread
from fedfi.errors import InputError, RunError, about
from fedfi.federation import hooks
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.checking import (
    check_counts,
    check_data,
    check_method_and_task,
    check_rest,
    expected_of,
    notes_on_data,
    notes_on_method,
    notes_on_norms,
    notes_on_split,
    running_statistics,
)
from fedfi.federation.engine import Engine
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.loop import Loop, Observer, RunResult
from fedfi.federation.record import RunDirectory
from fedfi.federation.rng import keyed_generator
from fedfi.federation.samedata import check_same_data
from fedfi.federation.sampling import round_size
from fedfi.federation.task import Task
from fedfi.federation.trial import try_out
from fedfi.federation.warming import load_before
from fedfi.progress import progress as showing


@named
def run(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    rounds: int,
    seed: int = 0,
    workers: int = 1,
    out: Path | str | None = None,
    evaluate: Evaluate | None = None,
    min_replies: int = 1,
    checkpoint_every: int = 1,
    resume: bool = False,
    engine: Engine | None = None,
    config: Mapping[str, Any] | None = None,
    observe: Observer | None = None,
    progress: bool = False,
) -> RunResult:
    """Runs a federation.

    Args:
        algorithm: The method.
        task: Model, data, local recipe and evaluation.
        rounds: Number of rounds.
        seed: Every draw is a function of it.
        workers: Processes that do client work; 1 stays in this process. Changes no bit of the result.
        out: Run directory; nothing is written without one.
        evaluate: When and what is judged.
        min_replies: Fewest valid replies with which a round counts.
        checkpoint_every: Rounds from one checkpoint to the next; after the last round there always is one.
        resume: Go on from the newest checkpoint in `out`.
        engine: Where clients live; by default a local engine with `workers`.
        config: What `run.toml` shall say; by default what is known here.
        observe: Called with the numbers of each round.
        progress: Show on stderr how far the run is.

    Returns:
        The model, the numbers of each round, and all failures.

    Raises:
        InputError: If an argument is out of range, `out` is not empty (without `resume`), or the data are not those
            that the run began with.
        RunError: If a round has fewer than `min_replies` valid replies, or the disk refuses.
    """
    evaluate = Evaluate() if evaluate is None else evaluate
    counts = {"rounds": rounds, "min_replies": min_replies, "workers": workers, "checkpoint_every": checkpoint_every}
    check_method_and_task(algorithm, task)
    check_counts(seed=seed, **counts)
    check_rest(out=out, evaluate=evaluate, engine=engine, config=config, observe=observe)
    if resume and out is None:
        raise InputError("resume needs the run directory to resume from (out)")
    check_data(task, evaluate)
    if resume and out and engine is None:  # before anybody is told of rounds; another engine's data may be elsewhere
        check_same_data(Path(out), task.data)
    config = config or {
        "rounds": rounds,
        "seed": seed,
        "algorithm": {"name": type(algorithm).__name__.lower(), **dataclasses.asdict(algorithm)},
        "train": dataclasses.asdict(task.training),
        "evaluate": dataclasses.asdict(evaluate),
    }
    owned, directory = engine is None, None
    engine = engine or LocalEngine(algorithm, task, seed=seed, workers=workers)
    try:
        with one_thread():  # a sum over threads would depend on their number
            asked = round_size(len(engine.clients()), algorithm.participation, algorithm.clients_per_round)
            if min_replies > asked:
                raise InputError(
                    f"min_replies = {min_replies}: only {asked} clients are asked a round (nearest valid: {asked})"
                )
            with about("model", "data"):
                odd = try_out(task)
            with about("algorithm", "model"):
                start = [hooks.started(algorithm, task, keyed_generator(seed, "server", "init"))]
            if out:
                directory = _open(Path(out), task, config, resume)
            loop = Loop(algorithm, task, seed, engine, directory, evaluate, min_replies, checkpoint_every, config)
            held = notes_on_data(algorithm, task, evaluate) if owned else []  # another engine's data may be elsewhere
            norms = running_statistics(task)
            loop.notes = odd + held + notes_on_split(task) + notes_on_method(algorithm, engine.clients())
            loop.notes += notes_on_norms(algorithm, task, norms)
            loop.expected = expected_of(task, norms)
            load_before(algorithm, task)
            with showing(rounds, quiet=not progress) as show:  # the first state is held by nobody but the loop
                return loop.run(start.pop(), rounds, resume, [show, observe] if observe else [show])
    except OSError as error:
        raise RunError(f"{error.filename or out or 'run'}: {error.strerror or error}") from error
    finally:
        if owned:
            engine.close()
        if directory:
            directory.close()


def _open(out: Path, task: Task, config: Mapping[str, Any], resume: bool) -> RunDirectory:
    if not resume:
        return RunDirectory.create(out, config, task.data)
    if not (out / "run.toml").exists():
        raise InputError(f"{out} is not a run directory: it has no run.toml")
    directory = RunDirectory(out)
    directory.lock()  # the loop completes it, once it is sure that it can go on
    return directory
