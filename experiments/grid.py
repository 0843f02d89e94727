"""Runs a grid of experiments: methods x settings x seeds, at one of several scales.

Usage:
  python experiments/grid.py GRID.toml --scale small --tune -o results/NAME    # learning rates, on validation examples
  python experiments/grid.py GRID.toml --scale small -o results/NAME           # all runs, then table.md, results.json
                                                                              # and curves.csv, means over seeds
  python experiments/grid.py GRID.toml --scale small --all -o results/NAME     # both

GRID.toml holds `seeds`, `rates`, an experiment `[base]`, what a scale changes `[scale.NAME]` (`tuning_rounds` is of the
tuning), what a setting changes `[axis.AXIS.VALUE]`, and what a method changes `[method.LABEL]`; `ignores` names axes
that mean nothing to a method, which is then run once for all their values. A value of an axis may hold tables for a
scale, `[axis.AXIS.VALUE.scale.NAME]`. Keys of `algorithm` outside the methods apply to every method that has them.
`shown` names the columns of the table: what each is called, and the number. Runs that are there already, with the same
settings, are kept, so that an interrupted grid goes on where it was; each is a file `runs/*.json` with its curves.
`extends` names a grid file beside this one, of which everything holds that this one does not say.
With `shared = true` clients' first local training is done once for all methods of a setting and seed, and kept in
`runs/trained`, for other grids, too; one run of each setting goes first. With `predictions = true` what a run's model
says of the test examples is kept (see predictions.py), and tables have the accuracy of its worst class and its
agreement with clients' models, which are those of the method `ensemble`.
Tuning takes a method's rate by the accuracy of its global model on the server's validation examples after
`tuning_rounds` of the first seed, for each value of the first axis, at the first value of the others. A method may have
`rates` of its own, and other keys to choose from besides, `tune = { "algorithm.interval" = [5, 20] }`, of which every
combination is tried; where there is one only, it is not tried; and `tuning_rounds` of its own. `metric` names another
number of the validation. Where `[evaluate] best` chooses a run's best round, that round counts, in tuning, too. A
method that is too slow for some values of an axis, or for all seeds, says so: `skip = { AXIS = ["VALUE"] }`, `seeds`.
With `--minutes`, the first seed is run, and others while there is time left.
"""

from __future__ import annotations

import argparse
import copy
import csv
import hashlib
import itertools
import json
import math
import statistics
import time
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import predictions
from fedfi import FederatedData, RatingsData, Task
from fedfi.composing import choose
from fedfi.experiment import Experiment, from_dict
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run
from fedfi.federation.stopping import best_line

Choice = float | dict[str, Any]  # a learning rate, or values by dotted keys

WHOLE = ("partition", "capacities")  # tables that are replaced, not merged
KEPT = (
    "global/",
    "levels/",
    "local/",
    "validation/",
    "jaccard/",
    "cv_",
    "keep_lowest/",
    "train/loss",
    "ranking/",
    "packets/",
    "ciphertexts/",
    "privacy/",
    "merge/",
    "objective/",
    "permuted",
    "weight/",
    "units/",
    "tune/",
)
TRAINED = Path("runs/trained")  # found by what training depends on, so that grids may share it
SAID = {"worst class": "worst_class", "agreement, highest": "agreement_largest", "agreement, mean": "agreement_mean"}
OWN = ("ignores", "seeds", "skip", "rates", "tune", "tuning_rounds")  # keys of a method that are no settings
SHOWN = {"global": "global/accuracy", "levels": "levels/mean/accuracy", "local": "local/accuracy_mean"}


@dataclass(frozen=True)
class Cell:
    """One run: a method at a value of each axis, with a seed."""

    method: str
    values: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return "-".join([*self.values, self.method, str(self.seed)])


class Grid:
    """What a grid file says at one scale."""

    def __init__(self, path: Path, scale: str) -> None:
        self.tables = read(path)
        scales = self.tables["scale"]
        if scale not in scales:
            raise SystemExit(f"--scale {scale}: choose from {', '.join(scales)}")
        self.named, self.scale = scale, dict(scales[scale])
        self.tuning_rounds = self.scale.pop("tuning_rounds", None)
        self.tables["seeds"] = self.scale.pop("seeds", self.tables["seeds"])
        self.shared, self.predictions = self.tables.get("shared", False), self.tables.get("predictions", False)
        self.axes: dict[str, dict[str, Any]] = self.tables.get("axis", {})
        self.methods: dict[str, dict[str, Any]] = self.tables["method"]
        self.metric: str = self.tables.get("metric", "validation/accuracy")
        self.shown: dict[str, str] = self.tables.get("shown", SHOWN)

    def choices(self, method: str) -> list[Choice]:
        """What tuning chooses from for a method."""
        rates = self.methods[method].get("rates", self.tables["rates"])
        tune = self.methods[method].get("tune", {})
        if not tune:
            return list(rates)
        keys = ("train.learning_rate", *tune)
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(rates, *tune.values())]

    def skips(self, method: str, values: tuple[str, ...], seed: int | None = None) -> bool:
        """Whether a method is not run at some values of the axes, or with a seed."""
        skip = self.methods[method].get("skip", {})
        others = seed is not None and seed not in self.methods[method].get("seeds", [seed])
        return others or any(v in skip.get(a, []) for a, v in zip(self.axes, values, strict=True))

    def cells(self, only: list[str] | None = None) -> Iterator[Cell]:
        """All runs, the first seed of everything first."""
        for seed in self.tables["seeds"]:
            for values in itertools.product(*self.axes.values()):
                for method, changes in self.methods.items():
                    if (only and method not in only) or self.skips(method, values, seed):
                        continue
                    ignored = changes.get("ignores", [])
                    if any(
                        a in ignored and v != next(iter(self.axes[a])) for a, v in zip(self.axes, values, strict=True)
                    ):
                        continue
                    named = [("any" if a in ignored else v) for a, v in zip(self.axes, values, strict=True)]
                    yield Cell(method, tuple(named), seed)

    def settings(self, cell: Cell, choice: Choice, rounds: int | None = None) -> dict[str, Any]:
        """The experiment of a cell."""
        tables = merged(self.tables["base"], self.scale)
        for axis, value in zip(self.axes, cell.values, strict=True):
            if value != "any":
                changes = dict(self.axes[axis][value])
                own = changes.pop("scale", {}).get(self.named, {})
                tables = merged(merged(tables, changes), own)
        changes = {k: v for k, v in self.methods[cell.method].items() if k not in OWN}
        before = tables.get("algorithm", {})
        tables["algorithm"] = choose(before, changes.get("algorithm", {}).get("name", before.get("name")))
        tables = merged(tables, changes)
        tables = merged(tables, {"seed": cell.seed})
        for key, value in (choice if isinstance(choice, dict) else {"train.learning_rate": choice}).items():
            table, _, name = key.partition(".")
            tables = merged(tables, {table: {name: value}})
        return tables if rounds is None else tables | {"rounds": min(rounds, tables["rounds"])}


def read(path: Path) -> dict[str, Any]:
    """A grid file, and what it extends; axes, methods and lists are replaced, other tables merged."""
    tables = tomllib.loads(path.read_text())
    if "extends" not in tables:
        return tables
    before = read(path.parent / tables.pop("extends"))
    replaced = {key: tables[key] for key in ("axis", "method") if key in tables}
    return merged(before, tables) | replaced


def merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with some keys replaced, deeply but for those of `WHOLE`."""
    result = copy.deepcopy(dict(tables))
    for key, value in changes.items():
        deep = isinstance(value, dict) and key not in WHOLE and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if deep else copy.deepcopy(value)
    return result


_kept: dict[str, FederatedData | RatingsData] = {}  # the last data, which the next run of a worker mostly shares


def task_of(experiment: Experiment, tables: Mapping[str, Any]) -> Task:
    """The task of an experiment, whose data are read and divided once for as long as they stay the same."""
    key = digest({"data": tables["data"], "seed": tables["seed"]})
    if key not in _kept:
        _kept.clear()
        _kept[key] = experiment.federate(experiment.load())
    return experiment.task(_kept[key])


def tried(job: tuple[str, Choice, str, dict[str, Any]]) -> tuple[str, Choice, float]:
    """What a choice comes to on the validation; nothing of the test set is looked at."""
    key, choice, metric, tables = job
    experiment = from_dict(tables, source=key)
    settings = experiment.settings
    judged = settings.evaluate if settings.evaluate.best else Evaluate(every=10_000, levels=False, local=False)
    result = run(
        experiment.algorithm(), task_of(experiment, tables), rounds=settings.rounds, seed=settings.seed, evaluate=judged
    )
    line = best_line(result.metrics, metric)
    value = math.nan if line is None else float(line[metric])
    print(f"{key} {said(choice)}: {value:.4f}", flush=True)
    return key, choice, value


def said(choice: Choice) -> str:
    """A choice in a line; a learning rate alone is its number."""
    if not isinstance(choice, dict):
        return str(choice)
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in choice.items())


def best_of(grid: Grid, method: str, row: Mapping[str, float]) -> Choice:
    """The best of a method's choices, by what each came to."""
    sign = -1 if "loss" in grid.metric else 1
    known = [c for c in grid.choices(method) if said(c) in row]
    return max(known, key=lambda c: -math.inf if math.isnan(row[said(c)]) else sign * row[said(c)])


def tune(grid: Grid, out: Path, workers: int, only: list[str] | None) -> None:
    """Writes `tuning.json`: method and first axis -> rates and their accuracies, and the best rate."""
    path, name = out / "tuning.json", grid.metric.replace("/", "_")
    found: dict[str, dict[str, float]] = json.loads(path.read_text())[name] if path.exists() else {}
    firsts = [next(iter(v)) for v in list(grid.axes.values())[1:]]
    jobs, planned = [], set()
    for value in next(iter(grid.axes.values()), {"": {}}):
        for method, changes in grid.methods.items():
            ignored = changes.get("ignores", [])
            key = tuning_key(method, "any" if next(iter(grid.axes), "") in ignored else value)
            choices = [c for c in grid.choices(method) if said(c) not in found.get(key, {})]
            if (only and method not in only) or not choices or key in planned:
                continue
            planned.add(key)
            if len(grid.choices(method)) == 1:
                continue
            values = [value, *firsts][: len(grid.axes)]
            if grid.skips(method, tuple(values)):
                continue
            named = tuple("any" if a in ignored else v for a, v in zip(grid.axes, values, strict=True))
            cell = Cell(method, named, grid.tables["seeds"][0])
            rounds = changes.get("tuning_rounds", grid.tuning_rounds)
            jobs += [(key, c, grid.metric, grid.settings(cell, c, rounds)) for c in choices]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for key, choice, value in pool.map(tried, jobs):
            found.setdefault(key, {})[said(choice)] = value
            best = {k: best_of(grid, k.partition("/")[0], row) for k, row in found.items()}
            content = {"rounds": grid.tuning_rounds, name: found, "best": best}
            path.write_text(json.dumps(content, indent=1) + "\n")


def tuning_key(method: str, value: str) -> str:
    return f"{method}/{value}" if value else method


@dataclass(frozen=True)
class Job:
    """A cell's run: its file, what is said of it, where client models are shared, and until when it may begin."""

    name: str
    tables: dict[str, Any]
    path: Path
    shown: dict[str, str]
    shared: Path | None
    predictions: bool
    until: float


def done(job: Job) -> str:
    """Runs a cell and writes its file, whole or not at all, unless it is too late."""
    if time.time() > job.until:
        return f"{job.name}: left for another time"
    experiment = from_dict(job.tables, source=job.name)
    settings, algorithm = experiment.settings, experiment.algorithm()
    task = replace(task_of(experiment, job.tables), shared=job.shared)
    result = run(
        algorithm,
        task,
        rounds=settings.rounds,
        seed=settings.seed,
        evaluate=settings.evaluate,
    )
    curves: dict[str, list[list[float]]] = {}
    for line in result.metrics:
        for key, value in line.items():
            if key.startswith(KEPT) and not key.endswith("examples") and not isinstance(value, str):
                curves.setdefault(key, []).append([line["round"], round(value, 6)])
    if "ranking/hr@10" in curves:
        sent = itertools.accumulate(line["bytes/down"] + line["bytes/up"] for line in result.metrics)
        totals = dict(zip((line["round"] for line in result.metrics), sent, strict=True))
        curves["bytes/total"] = [[at, totals[at]] for at, _ in curves["ranking/hr@10"]]
    content = {
        "settings": job.tables,
        "best": result.best,
        "failures": len(result.failures),
        "bytes_down": sum(line["bytes/down"] for line in result.metrics),
        "bytes_up": sum(line["bytes/up"] for line in result.metrics),
        "seconds": round(sum(line["seconds"] for line in result.metrics), 1),
        "curves": curves,
    }
    if job.predictions:
        predictions.keep(job.path.with_suffix(".npz"), algorithm, task, result)
    aside = job.path.with_suffix(".part")
    aside.write_text(json.dumps(content) + "\n")
    aside.replace(job.path)
    numbers = {k: statistics.mean(final(content, v, 1)) for k, v in job.shown.items() if v in curves}
    told = ", ".join(f"{name} {number:.3f}" for name, number in numbers.items())
    return f"{job.name}: {told} ({content['seconds']:.0f} s)"


def final(found: Mapping[str, Any], key: str, last: int) -> list[float]:
    """What a run came to: its value in the best round where one is chosen, else the last ones."""
    curve = found["curves"][key]
    best = [value for at, value in curve if at == found.get("best")]
    return best or [value for _, value in curve[-last:]]


def digest(tables: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(tables, sort_keys=True).encode(), digest_size=8).hexdigest()


def run_all(grid: Grid, out: Path, workers: int, only: list[str] | None, until: float) -> None:
    """Runs what is missing; but for the first seed, nothing is begun after a moment."""
    tuned = chosen(grid, out)
    (out / "runs").mkdir(parents=True, exist_ok=True)
    first, rest, begun = list[Job](), list[Job](), set[tuple[Any, ...]]()
    for cell in grid.cells(only):
        rate = tuned.get(tuning_key(cell.method, cell.values[0] if cell.values else ""))
        if rate is None:
            raise SystemExit(f"no learning rate for {cell.name}: run with --tune first")
        tables, path = grid.settings(cell, rate), out / "runs" / f"{cell.name}.json"
        if not path.exists() or digest(json.loads(path.read_text())["settings"]) != digest(tables):
            latest = math.inf if cell.seed == grid.tables["seeds"][0] else until
            shared = TRAINED if grid.shared else None
            job = Job(cell.name, tables, path, grid.shown, shared, grid.predictions, latest)
            (rest if not grid.shared or (cell.values, cell.seed) in begun else first).append(job)
            begun.add((cell.values, cell.seed))
    print(f"{len(first) + len(rest)} runs", flush=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for line in pool.map(done, [*first, *rest]):
            print(line, flush=True)


def chosen(grid: Grid, out: Path) -> dict[str, Choice]:
    """What tuning chose, and what there was no choice of."""
    path = out / "tuning.json"
    tuned: dict[str, Choice] = json.loads(path.read_text())["best"] if path.exists() else {}
    for method, changes in grid.methods.items():
        if len(grid.choices(method)) == 1:
            first = next(iter(grid.axes), "")
            values = ["any"] if first in changes.get("ignores", []) else grid.axes.get(first, {"": {}})
            tuned |= {tuning_key(method, value): grid.choices(method)[0] for value in values}
    return tuned


def said_by(grid: Grid, out: Path, method: str, values: tuple[str, ...], seed: int) -> dict[str, Any]:
    """What predictions of a run come to."""
    paths = [out / "runs" / f"{Cell(name, values, seed).name}.npz" for name in (method, "ensemble")]
    return predictions.figures(*paths) if grid.predictions else {}


def table(grid: Grid, out: Path, last: int) -> str:
    """A Markdown table a setting: mean and sample sd over seeds of means of last evaluations; accuracies in %."""
    lines = []
    tuned = chosen(grid, out)
    columns = [*grid.shown, *(SAID if grid.predictions else ())]
    for values in itertools.product(*grid.axes.values()):
        lines += [
            f"### {', '.join(values)}" if values else "",
            "",
            "| method | rate | seeds | " + " | ".join(columns) + " | MB down / up | s |",
        ]
        lines += ["|---" * (len(columns) + 5) + "|"]
        for method, changes in grid.methods.items():
            ignored = changes.get("ignores", [])
            named = tuple("any" if a in ignored else v for a, v in zip(grid.axes, values, strict=True))
            paths = [out / "runs" / f"{Cell(method, named, seed).name}.json" for seed in grid.tables["seeds"]]
            found = [json.loads(p.read_text()) for p in paths if p.exists()]
            if not found:
                continue
            cells = []
            for key in grid.shown.values():
                runs = [final(f, key, last) for f in found if key in f["curves"]]
                percent = 100 if "accuracy" in key or "ranking/" in key or key == "permuted" else 1
                means = [percent * statistics.mean(run) for run in runs]
                spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
                cells.append(f"{statistics.mean(means):.1f}{spread}" if means else "–")
            for key in SAID.values() if grid.predictions else ():
                told = [said_by(grid, out, method, named, seed) for seed in grid.tables["seeds"]]
                shares = [100 * row[key] for row in told if key in row]
                cells.append(f"{statistics.mean(shares):.1f}" if shares else "–")
            down, up = (statistics.mean(f[k] for f in found) / 1e6 for k in ("bytes_down", "bytes_up"))
            rate = tuned.get(tuning_key(method, named[0] if named else ""))
            tried, seconds = "" if rate is None else said(rate), statistics.mean(f["seconds"] for f in found)
            traffic = f"{down:.1f} / {up:.1f} | {seconds:.0f}"
            lines.append(f"| {method} | {tried} | {len(found)} | " + " | ".join(cells) + f" | {traffic} |")
        lines.append("")
    return "\n".join(lines)


def collect(grid: Grid, out: Path, last: int) -> None:
    """Writes `results.json`, a run each, and `curves.csv`, means over seeds."""
    runs, curves = [], dict[tuple[str, ...], list[float]]()
    for cell in grid.cells():
        path = out / "runs" / f"{cell.name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        runs.append(
            {
                "setting": list(cell.values),
                "method": cell.method,
                "seed": cell.seed,
                "rounds": found["settings"]["rounds"],
                "learning_rate": found["settings"]["train"]["learning_rate"],
                **{key: found[key] for key in ("failures", "bytes_down", "bytes_up", "seconds")},
                **({"best": found["best"]} if found.get("best") else {}),
                **{key: round(statistics.mean(final(found, key, last)), 5) for key in found["curves"]},
                **said_by(grid, out, cell.method, cell.values, cell.seed),
            }
        )
        for key, points in found["curves"].items():
            for at, value in points:
                curves.setdefault((*cell.values, cell.method, key, str(int(at))), []).append(value)
    (out / "results.json").write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
    with (out / "curves.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*grid.axes, "method", "metric", "round", "seeds", "mean", "sd"])
        for key, values in curves.items():
            spread = round(statistics.stdev(values), 5) if len(values) > 1 else ""
            rows.writerow([*key, len(values), round(statistics.mean(values), 5), spread])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--scale", default="small")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tune", action="store_true", help="only tune")
    parser.add_argument("--all", action="store_true", help="tune what is not tuned, then run")
    parser.add_argument("--only", help="these methods, separated by commas")
    parser.add_argument("--last", type=int, default=2, help="average so many last evaluations of a run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run of a later seed after so long")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    until = time.time() + 60 * options.minutes
    grid = Grid(options.grid, options.scale)
    only = options.only.split(",") if options.only else None
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tune or options.all:
        tune(grid, options.out, options.workers, only)
    if options.tune:
        return
    run_all(grid, options.out, options.workers, only, until)
    collect(grid, options.out, options.last)
    (options.out / "table.md").write_text(table(grid, options.out, options.last))
    print(table(grid, options.out, options.last))


if __name__ == "__main__":
    main()
