"""Runs a grid of experiments: methods x settings x seeds, at one of several scales.

Usage:
  python experiments/grid.py GRID.toml --scale small --tune -o results/NAME    # learning rates, on validation examples
  python experiments/grid.py GRID.toml --scale small -o results/NAME           # all runs, then table.md, results.json
                                                                              # and curves.csv, means over seeds

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
With a single rate there is nothing to tune. Else tuning takes a method's rate by the accuracy of its global model on
the server's validation examples after `tuning_rounds` of the first seed, for each value of the first axis, at the first
value of the others.
"""

from __future__ import annotations

import argparse
import copy
import csv
import hashlib
import itertools
import json
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping
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
        self.shared, self.predictions = self.tables.get("shared", False), self.tables.get("predictions", False)
        self.shown: dict[str, str] = self.tables.get("shown", SHOWN)
        self.axes: dict[str, dict[str, Any]] = self.tables.get("axis", {})
        self.methods: dict[str, dict[str, Any]] = self.tables["method"]

    def cells(self, only: list[str] | None = None) -> Iterator[Cell]:
        """All runs, the first seed of everything first."""
        for seed in self.tables["seeds"]:
            for values in itertools.product(*self.axes.values()):
                for method, changes in self.methods.items():
                    if only and method not in only:
                        continue
                    ignored = changes.get("ignores", [])
                    if any(
                        a in ignored and v != next(iter(self.axes[a])) for a, v in zip(self.axes, values, strict=True)
                    ):
                        continue
                    named = [("any" if a in ignored else v) for a, v in zip(self.axes, values, strict=True)]
                    yield Cell(method, tuple(named), seed)

    def settings(self, cell: Cell, rate: float, rounds: int | None = None) -> dict[str, Any]:
        """The experiment of a cell."""
        tables = merged(self.tables["base"], self.scale)
        for axis, value in zip(self.axes, cell.values, strict=True):
            if value != "any":
                changes = dict(self.axes[axis][value])
                own = changes.pop("scale", {}).get(self.named, {})
                tables = merged(merged(tables, changes), own)
        changes = {k: v for k, v in self.methods[cell.method].items() if k != "ignores"}
        tables["algorithm"] = choose(tables.get("algorithm", {}), changes["algorithm"]["name"])
        tables = merged(tables, changes)
        tables = merged(tables, {"seed": cell.seed, "train": {"learning_rate": rate}})
        return tables if rounds is None else tables | {"rounds": rounds}


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


def tried(job: tuple[str, float, dict[str, Any]]) -> tuple[str, float, float]:
    """The validation accuracy of a rate; nothing of the test set is looked at."""
    key, rate, tables = job
    experiment = from_dict(tables, source=key)
    judged = Evaluate(every=10_000, levels=False, local=False)
    settings = experiment.settings
    result = run(
        experiment.algorithm(), task_of(experiment, tables), rounds=settings.rounds, seed=settings.seed, evaluate=judged
    )
    accuracy = result.metrics[-1]["validation/accuracy"]
    print(f"{key} {rate}: {accuracy:.4f}", flush=True)
    return key, rate, accuracy


def tune(grid: Grid, out: Path, workers: int, only: list[str] | None) -> None:
    """Writes `tuning.json`: method and first axis -> rates and their accuracies, and the best rate."""
    path = out / "tuning.json"
    found: dict[str, dict[str, float]] = json.loads(path.read_text())["validation_accuracy"] if path.exists() else {}
    firsts = [next(iter(v)) for v in list(grid.axes.values())[1:]]
    jobs, planned = [], set()
    for value in next(iter(grid.axes.values()), {"": {}}):
        for method, changes in grid.methods.items():
            ignored = changes.get("ignores", [])
            key = tuning_key(method, "any" if next(iter(grid.axes), "") in ignored else value)
            if (only and method not in only) or set(found.get(key, {})) >= {str(r) for r in grid.tables["rates"]}:
                continue
            if key in planned:
                continue
            planned.add(key)
            values = [value, *firsts][: len(grid.axes)]
            named = tuple("any" if a in ignored else v for a, v in zip(grid.axes, values, strict=True))
            cell = Cell(method, named, grid.tables["seeds"][0])
            jobs += [(key, rate, grid.settings(cell, rate, grid.tuning_rounds)) for rate in grid.tables["rates"]]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for key, rate, accuracy in pool.map(tried, jobs):
            found.setdefault(key, {})[str(rate)] = accuracy
            best = {k: float(max(row, key=lambda r: row[r])) for k, row in found.items()}
            content = {"rounds": grid.tuning_rounds, "validation_accuracy": found, "best": best}
            path.write_text(json.dumps(content, indent=1) + "\n")


def tuning_key(method: str, value: str) -> str:
    return f"{method}/{value}" if value else method


@dataclass(frozen=True)
class Job:
    """A cell's run: where it goes, what is said of it, where client models are shared, whether predictions are kept."""

    name: str
    tables: dict[str, Any]
    path: Path
    shown: dict[str, str]
    shared: Path | None
    predictions: bool


def done(job: Job) -> str:
    """Runs a cell and writes its file, whole or not at all."""
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
    content = {
        "settings": job.tables,
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
    said = ", ".join(f"{k} {curves[v][-1][1]:.3f}" for k, v in job.shown.items() if v in curves)
    return f"{job.name}: {said} ({content['seconds']:.0f} s)"


def rates_of(grid: Grid, out: Path) -> Callable[[Cell], float | None]:
    """The learning rate of a cell: the only one that there is, or what tuning found; None before it has."""
    path, rates = out / "tuning.json", grid.tables["rates"]
    tuned = json.loads(path.read_text())["best"] if path.exists() else {}

    def rate(cell: Cell) -> float | None:
        found: float | None = tuned.get(tuning_key(cell.method, cell.values[0] if cell.values else ""))
        return rates[0] if len(rates) == 1 else found

    return rate


def digest(tables: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(tables, sort_keys=True).encode(), digest_size=8).hexdigest()


def run_all(grid: Grid, out: Path, workers: int, only: list[str] | None) -> None:
    """Runs what is missing."""
    tuned = rates_of(grid, out)
    (out / "runs").mkdir(parents=True, exist_ok=True)
    first, rest, begun = list[Job](), list[Job](), set[tuple[Any, ...]]()
    for cell in grid.cells(only):
        rate = tuned(cell)
        if rate is None:
            raise SystemExit(f"no learning rate for {cell.name}: run with --tune first")
        tables, path = grid.settings(cell, rate), out / "runs" / f"{cell.name}.json"
        if not path.exists() or digest(json.loads(path.read_text())["settings"]) != digest(tables):
            job = Job(cell.name, tables, path, grid.shown, TRAINED if grid.shared else None, grid.predictions)
            (rest if not grid.shared or (cell.values, cell.seed) in begun else first).append(job)
            begun.add((cell.values, cell.seed))
    print(f"{len(first) + len(rest)} runs", flush=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for said in pool.map(done, [*first, *rest]):
            print(said, flush=True)


def said_by(grid: Grid, out: Path, method: str, values: tuple[str, ...], seed: int) -> dict[str, Any]:
    """What predictions of a run come to."""
    paths = [out / "runs" / f"{Cell(name, values, seed).name}.npz" for name in (method, "ensemble")]
    return predictions.figures(*paths) if grid.predictions else {}


def table(grid: Grid, out: Path, last: int) -> str:
    """A Markdown table a setting: mean and sample sd over seeds of means of last evaluations; accuracies in %."""
    lines = []
    tuned = rates_of(grid, out)
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
                runs = [[v for _, v in f["curves"][key][-last:]] for f in found if key in f["curves"]]
                percent = 100 if "accuracy" in key or key == "permuted" else 1
                means = [percent * statistics.mean(run) for run in runs]
                spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
                cells.append(f"{statistics.mean(means):.1f}{spread}" if means else "–")
            for key in SAID.values() if grid.predictions else ():
                said = [said_by(grid, out, method, named, seed) for seed in grid.tables["seeds"]]
                shares = [100 * row[key] for row in said if key in row]
                cells.append(f"{statistics.mean(shares):.1f}" if shares else "–")
            down, up = (statistics.mean(f[k] for f in found) / 1e6 for k in ("bytes_down", "bytes_up"))
            rate, seconds = tuned(Cell(method, named, 0)) or "", statistics.mean(f["seconds"] for f in found)
            traffic = f"{down:.1f} / {up:.1f} | {seconds:.0f}"
            lines.append(f"| {method} | {rate} | {len(found)} | " + " | ".join(cells) + f" | {traffic} |")
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
                **{key: round(statistics.mean(v for _, v in c[-last:]), 5) for key, c in found["curves"].items()},
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
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--only", help="these methods, separated by commas")
    parser.add_argument("--last", type=int, default=2, help="average so many last evaluations of a run")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    grid = Grid(options.grid, options.scale)
    only = options.only.split(",") if options.only else None
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tune:
        tune(grid, options.out, options.workers, only)
        return
    run_all(grid, options.out, options.workers, only)
    collect(grid, options.out, options.last)
    (options.out / "table.md").write_text(table(grid, options.out, options.last))
    print(table(grid, options.out, options.last))


if __name__ == "__main__":
    main()
