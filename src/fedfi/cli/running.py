"""`fedfi run` and `fedfi resume`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from fedfi import registry
from fedfi.cli.exits import note_workers, quoted, stoppable
from fedfi.cli.results import print_result
from fedfi.errors import InputError, OutputError, RunError
from fedfi.executing import execute, rounds_done
from fedfi.experiment import Experiment, load_experiment, of_run
from fedfi.federation.record import RunDirectory, read_lines
from fedfi.federation.sampling import round_size
from fedfi.federation.saved import check_finished
from fedfi.federation.task import Task
from fedfi.importing import importing_from
from fedfi.progress import loading, progress


def start(file: Path, overrides: list[str], out: Path | None, workers: int, quiet: bool) -> None:
    """Runs an experiment in a new run directory."""
    with importing_from(Path.cwd(), file.parent, *remembered([file.parent])):
        _start(file, overrides, out, workers, quiet)


def _start(file: Path, overrides: list[str], out: Path | None, workers: int, quiet: bool) -> None:
    experiment = load_experiment(file, overrides)
    out = out or _free(Path("runs"), f"{file.stem}-{_label(experiment)}")
    check_free(out)
    loading(experiment.settings.data.name, quiet)
    task = experiment.task()
    if not quiet:
        print(f"run directory: {out}", file=sys.stderr)
    _run(experiment, task, out, workers, quiet, done=None)


def check_free(out: Path) -> None:
    """Looks, before anything is done, whether a new run directory can be made.

    Raises:
        InputError: Saying what there is, or who does not let it.
    """
    if (taken := RunDirectory.taken(out)) is not None:
        raise InputError(f"--out {out}: {taken}")
    check_writable(out)


def check_writable(out: Path) -> None:
    """Looks whether a directory can be written to, or be made.

    Raises:
        InputError: Naming what stands in its way.
    """
    place = next((p for p in (out, *out.parents) if p.exists()), out)
    if not place.is_dir():
        raise InputError(f"--out {out}: {place} is a file, no directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: cannot write to {place}: permission denied")


def go_on(directory: Path, workers: int, rounds: int | None, quiet: bool) -> None:
    """Resumes a run from its directory alone."""
    with importing_from(*remembered([directory]), Path.cwd()):
        _go_on(directory, workers, rounds, quiet)


def _go_on(directory: Path, workers: int, rounds: int | None, quiet: bool) -> None:
    experiment = of_run(directory)
    done = rounds_done(directory)
    planned = experiment.settings.rounds
    if rounds is not None and rounds < max(done, planned):
        raise InputError(f"--rounds {rounds}: the run has {max(done, planned)} (nearest valid: {max(done, planned)})")
    if (ended := finished(directory, rounds or planned)) is not None:
        check_finished(RunDirectory(directory), ended, experiment.resolved(), experiment.tables)
        if not (directory / "report.html").exists():
            print(_report(directory), file=sys.stderr)
        if not quiet:
            print(f"{directory} is finished: {done} of {planned} rounds")
            print_result(directory)
        return
    if rounds is not None and rounds != planned:
        experiment = experiment.changed({"rounds": rounds})
    loading(experiment.settings.data.name, quiet)
    task = experiment.task()
    _run(experiment, task, directory, workers, quiet, done=done)


def remembered(directories: Iterable[Path]) -> list[str]:
    """Where runs looked for a user's own modules, so that they are found from anywhere; see `env.json`."""
    import json

    found: dict[str, None] = {}
    for directory in directories:
        try:
            places = json.loads((directory / "env.json").read_text(encoding="utf-8"))["import_from"]
            found |= dict.fromkeys(str(place) for place in places)
        except (OSError, ValueError, LookupError, TypeError):  # no run, an older one, or damaged: it knows of none
            continue
    return list(found)


def _run(experiment: Experiment, task: Task, out: Path, workers: int, quiet: bool, done: int | None) -> None:
    method = experiment.method
    asked = round_size(len(task.data.clients), method.participation, method.clients_per_round)
    note_workers(workers, asked, "clients a round", quiet)
    with (
        stoppable(f"fedfi resume {quoted(out)}"),
        progress(experiment.settings.rounds, done or 0, quiet=quiet) as observe,
        experiment.naming(),
    ):
        execute(experiment, task, out, resume=done is not None, observe=observe, workers=workers)
    report = _report(out)
    if not quiet:
        print_result(out)
        print(report)


def finished(directory: Path, rounds: int) -> int | None:
    """After how many rounds the run has come to its end, if it has, and its model is there; fewer if it stopped."""
    if not (directory / "model.safetensors").exists():
        return None
    events = read_lines(directory / "events.jsonl")
    return next((e.get("stopped", rounds) for e in events if e["event"] == "done" and e["rounds"] == rounds), None)


def _report(out: Path) -> str:
    from fedfi.report import write_report

    try:
        write_report([out], out / "report.html")
    except OutputError as error:
        raise RunError(f"{out}: the run is complete, but its report is not: {error}") from error
    except InputError as error:  # the extra is missing; the run is complete without it
        return f"no report.html: {error}"
    return f"report: {out / 'report.html'}"


def _label(experiment: Experiment) -> str:
    table = experiment.settings.algorithm
    name = str(table["name"]).rpartition(":")[2].lower()
    return "-".join([name, *(w for w in registry.wrappers() if w in table)])


def _free(folder: Path, stem: str) -> Path:
    return next(path for n in count(1) if not (path := folder / f"{stem}-{n}").exists())
