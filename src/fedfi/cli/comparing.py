"""`fedfi compare`: every method with every seed, each run in a process of its own, then one table."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedfi import registry
from fedfi.cli.exits import note_workers, quoted, stoppable
from fedfi.cli.results import warned
from fedfi.cli.running import check_writable, remembered
from fedfi.cli.summary import comma_separated, markdown, print_table, summarise, values_of
from fedfi.cli.variants import variants
from fedfi.engines.workplace import one_thread
from fedfi.errors import InputError, RunError
from fedfi.executing import execute
from fedfi.experiment import Experiment, Loaded, load_experiment, read_toml
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.failing import reasons
from fedfi.federation.record import finite
from fedfi.federation.rng import keyed_generator
from fedfi.importing import importing_from
from fedfi.parallel import Work, in_processes
from fedfi.progress import loading, progress
from fedfi.report.reading import read_run
from fedfi.validation import flat, shown

_TRAINED = ".trained"  # labels do not begin with a dot
State = Literal["new", "begun", "finished"]
_UNSTARTED = {
    ".lock",
    "run.toml",
    "env.json",
    "split.json",
    "inputs.json",
    "events.jsonl",
    "metrics.jsonl",
    "exhibits",
    "checkpoints",
    "rows",
    "tensorboard",
    "mlflow.json",
}


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    label: str
    seed: int
    experiment: Experiment
    directory: Path
    state: State


def compare(
    file: Path,
    algorithms: str | None,
    seeds: str,
    out: Path,
    overrides: list[str],
    workers: int,
    last: int,
    quiet: bool,
) -> None:
    """Runs what is missing, then writes and prints the table."""
    with importing_from(Path.cwd(), file.parent, *remembered(p.parent for p in sorted(out.glob("*/seed-*/env.json")))):
        _compare(file, algorithms, seeds, out, overrides, workers, last, quiet)


def _compare(
    file: Path,
    algorithms: str | None,
    seeds: str,
    out: Path,
    overrides: list[str],
    workers: int,
    last: int,
    quiet: bool,
) -> None:
    base = load_experiment(file, overrides)
    if (out / "run.toml").exists():
        raise InputError(f"--out {out}: is the directory of a single run; name one that is new, or a comparison's")
    check_writable(out)
    chosen = variants(base, algorithms)
    planned = [
        plan(label, experiment.changed({"seed": seed}), out)
        for seed in parse_seeds(seeds)
        for label, experiment in chosen.items()
    ]
    missing = [p for p in planned if p.state != "finished"]
    failed: dict[Path, str] = {}
    if missing:
        rounds = sum(p.experiment.settings.rounds - _done(p) for p in missing)
        if not quiet:
            kept = len(planned) - len(missing)
            print(f"{len(missing)} runs in {out}" + (f", {kept} kept" if kept else ""), file=sys.stderr)
        note_workers(workers, len(missing), "runs", quiet)
        works = _works(missing, quiet, _place(chosen, out))
        with stoppable("the same command"), progress(rounds, quiet=quiet, unit="rounds in all") as observe:
            for number, kind, content in in_processes(works, workers):
                if kind == "failed":
                    failed[missing[number].directory] = content
                    print(f"{missing[number].directory}: {content}", file=sys.stderr)
                else:
                    p = missing[number]
                    observe({"text": f"{p.label} seed {p.seed}: {content}"})
    if not failed:
        shutil.rmtree(out / _TRAINED, ignore_errors=True)
    table = _write(base, chosen, planned, failed, out, last)
    if not quiet and sys.stdout.isatty():
        print_table(out / "results.json")
    elif not quiet:
        print(table, end="")
    if not quiet:
        _tell(p for p in planned if p.directory not in failed)
        print(f"table: {out / 'table.md'}; all runs as a page: fedfi report {quoted(out)}", file=sys.stderr)
    if failed:
        raise RunError(f"{len(failed)} of {len(planned)} runs failed: {', '.join(map(str, failed))}")


def parse_seeds(text: str) -> list[int]:
    """``"0,1,2"`` or ``"0-2"`` as numbers.

    Raises:
        InputError: If one is no whole number from 0, or there twice.
    """
    seeds: list[int] = []
    for part in map(str.strip, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--seeds {text}: {part!r} is not a whole number from 0 (such as 0,1,2 or 0-2)")
        if dash and int(last) < int(first):
            raise InputError(f"--seeds {text}: {part!r} runs backwards (nearest valid: {last}-{first})")
        seeds += range(int(first), int(last or first) + 1)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text}: a seed is given twice")
    return seeds


def plan(label: str, experiment: Experiment, out: Path) -> Planned:
    """Looks what there is of a run.

    Raises:
        InputError: If its directory holds a run of other settings, naming the first that differs.
    """
    seed = experiment.settings.seed
    directory = out / label / f"seed-{seed}"
    there = {p.name for p in directory.iterdir()} if directory.is_dir() else set()
    state: State = "new"
    if "run.toml" in there:
        _check_same(directory, read_toml(directory / "run.toml"), experiment.resolved())
        checkpoints = directory / "checkpoints"
        begun = checkpoints.is_dir() and any(checkpoints.glob("round-*"))
        finished = read_run(directory).finished
        state = "finished" if finished else "begun" if begun else "new"
    elif there - _UNSTARTED:
        raise InputError(f"{directory}: is not empty, yet it is no run directory; choose another --out")
    return Planned(label, seed, experiment, directory, state)


def _check_same(directory: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    old, new = dict(flat(before)), dict(flat(now))
    for key in {**new, **old}:
        if old.get(key) != new.get(key):
            values = [f"{key} = {shown(t[key])}" if key in t else f"no {key}" for t in (old, new)]
            raise InputError(f"{directory}: holds a run with {values[0]}, now it is {values[1]}; choose another --out")


def _place(chosen: Mapping[str, Experiment], out: Path) -> Path | None:
    """Where clients' first training is kept for the other runs, if several methods merge what came of it."""
    names = [str(experiment.settings.algorithm["name"]) for experiment in chosen.values()]
    known = registry.entries()
    merging = [name for name in names if name in known and known[name].family == "oneshot"]
    return out / _TRAINED if len(merging) > 1 else None


def _works(planned: list[Planned], quiet: bool, shared: Path | None) -> Iterator[Work]:
    """The work of each run; data are loaded once, divided once a seed, and shared by its runs."""
    loading(planned[0].experiment.settings.data.name, quiet)
    loaded = planned[0].experiment.load()
    data, seed = planned[0].experiment.federate(loaded), planned[0].seed
    _check_all(planned, data)
    return _works_on(planned, loaded, data, seed, shared)


def _check_all(planned: list[Planned], data: Any) -> None:
    """Begins every new method once, up to its state before the first round, so that none fails after others have run.

    Raises:
        InputError: Naming all that cannot work, and why.
    """
    news = {p.label: p for p in reversed(planned) if p.state == "new"}
    wrong = {}
    for label, p in reversed(news.items()):
        try:
            with p.experiment.naming(), one_thread():
                p.experiment.method.init(p.experiment.task(data), keyed_generator(p.seed, "server", "init"))
        except InputError as error:
            wrong[label] = str(error)
    if len(wrong) == 1 or len(set(wrong.values())) == 1:
        raise InputError(next(iter(wrong.values())) + f" (method {', '.join(wrong)}; nothing has been run)")
    if wrong:
        told = "; ".join(f"{label}: {text}" for label, text in wrong.items())
        raise InputError(f"{len(wrong)} of {len(news)} methods cannot work, nothing has been run: {told}")


def _works_on(planned: list[Planned], loaded: Loaded, data: Any, seed: int, shared: Path | None) -> Iterator[Work]:
    for p in planned:
        if p.seed != seed:
            data, seed = p.experiment.federate(loaded), p.seed
        task = replace(p.experiment.task(data), shared=shared)

        def work(tell: Any, p: Planned = p, task: Any = task) -> None:
            if p.state != "begun":
                _clear(p.directory)
            execute(p.experiment, task, p.directory, resume=p.state == "begun", observe=tell)

        yield work


def _clear(directory: Path) -> None:
    """Removes what a run that ended before its first checkpoint has left."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name in _UNSTARTED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _done(planned: Planned) -> int:
    return read_run(planned.directory).rounds if planned.state == "begun" else 0


def _tell(planned: Iterable[Planned]) -> None:
    """What failed in the runs, and what each warned of while it ran; they told those of their start when they began."""
    for p in planned:
        run = read_run(p.directory)
        for line in reasons(run.of_kind("failure")) + warned([w for w in run.of_kind("warning") if "round" in w]):
            print(f"{p.label} seed {p.seed}: {line}", file=sys.stderr)


def _write(
    base: Experiment,
    chosen: Mapping[str, Experiment],
    planned: list[Planned],
    failed: Mapping[Path, str],
    out: Path,
    last: int,
) -> str:
    values: dict[str, dict[int, dict[str, float]]] = {label: {} for label in chosen}
    for p in planned:
        if p.directory not in failed:
            values[p.label][p.seed] = values_of(read_run(p.directory), last)
    summaries = {label: summarise(seeds.values()) for label, seeds in values.items()}
    counts = {label: len(seeds) for label, seeds in values.items()}
    results = {
        "config": replace(base).resolved(),
        "last": last,
        "methods": {
            label: {
                "config": {k: v for k, v in chosen[label].resolved().items() if k in ("algorithm", "train")},
                "seeds": {str(seed): v for seed, v in values[label].items()},
                "summary": summaries[label],
            }
            for label in chosen
        },
        "failed": {str(path.relative_to(out)): text for path, text in failed.items()},
    }
    table = markdown(summaries, counts)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "table.md", table.encode())
    write_atomically(out / "table.csv", comma_separated(summaries, counts).encode())
    write_atomically(out / "results.json", json.dumps(finite(results), indent=1, allow_nan=False).encode())
    return table
