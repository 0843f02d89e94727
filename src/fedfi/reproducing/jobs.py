"""What of a grid is there already, and what is missing.

A run is a file `runs/NAME.json` with its settings; one of the same settings is kept, whoever made it and when. Clients'
first training, where methods share it, is found by what it depends on, so that grids may share it, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfi.errors import InputError
from fedfi.experiment import Experiment
from fedfi.reproducing.grid import ANY, Cell, Choice, Grid, digest
from fedfi.validation import flat, shown

TRAINED = Path("runs/trained")


@dataclass(frozen=True)
class Job:
    """A run to be made.

    Attributes:
        cell: Which.
        tables: The settings of its experiment, which its file will hold.
        experiment: The experiment.
        path: Its file.
        shown: The numbers that are told of it, by name.
        shared: Where clients' first training is kept for other runs, if it is.
        predictions: Whether to keep what its model says of the test examples.
    """

    cell: Cell
    tables: dict[str, Any]
    experiment: Experiment
    path: Path
    shown: Mapping[str, str]
    shared: Path | None
    predictions: bool


def run_path(out: Path, cell: Cell) -> Path:
    """The file of a run."""
    return out / "runs" / f"{cell.name}.json"


def read_run_file(path: Path) -> dict[str, Any]:
    """The content of a run's file.

    Raises:
        InputError: If it is damaged.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        digest(found["settings"])
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: is no file of a run ({error}); remove it to have it made again") from error
    return found


def runs_of(grid: Grid, out: Path, cell: Cell) -> list[dict[str, Any]]:
    """The files of a cell's runs of all seeds that are there."""
    paths = [run_path(out, Cell(cell.method, cell.values, seed)) for seed in grid.known_seeds]
    return [read_run_file(path) for path in paths if path.exists()]


def read_tuning(grid: Grid, out: Path) -> dict[str, Any]:
    """The content of `tuning.json`: what was tried, and the best; empty where there is none.

    Raises:
        InputError: If it is damaged, or of tuning runs of another length.
    """
    path = out / "tuning.json"
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rounds, _ = found["rounds"], found["best"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is no file of choices ({error}); remove it to have it made again") from error
    if rounds != grid.tuning_rounds:
        raise InputError(
            f"{path}: was made with tuning_rounds = {shown(rounds)}, at scale {grid.scale} it is"
            f" {shown(grid.tuning_rounds)}; choose another --out"
        )
    return found


def tuning_key(method: str, value: str) -> str:
    """What `tuning.json` calls a method at a value of the first axis."""
    return f"{method}/{value}" if value else method


def chosen(grid: Grid, out: Path) -> dict[str, Choice]:
    """What tuning chose, and what there was no choice of."""
    tuned: dict[str, Choice] = dict(read_tuning(grid, out).get("best", {}))
    first = next(iter(grid.axes), "")
    for method, changes in grid.methods.items():
        if len(grid.choices(method)) == 1:
            values = [ANY] if first in changes.get("ignores", []) else list(grid.axes.get(first, {"": {}}))
            tuned |= {tuning_key(method, value): grid.choices(method)[0] for value in values}
    return tuned


def choice_of(tuned: Mapping[str, Choice], cell: Cell) -> Choice | None:
    """What was chosen for a run."""
    return tuned.get(tuning_key(cell.method, cell.values[0] if cell.values else ""))


def missing(grid: Grid, out: Path, only: Collection[str] | None = None) -> list[Job]:
    """The runs that are not there with the settings that they would have now.

    Where clients' training is shared, one run of each setting and seed comes before all others.

    Args:
        grid: The grid.
        out: Its directory.
        only: Labels of methods; by default all.

    Raises:
        InputError: If an experiment is not valid, a run was not tuned, or one of other settings is in its place.
    """
    tuned = chosen(grid, out)
    first, rest, begun = list[Job](), list[Job](), set[tuple[tuple[str, ...], int]]()
    for cell in grid.cells(only=only):
        choice = choice_of(tuned, cell)
        if choice is None:
            raise InputError(f"{out / 'tuning.json'}: has no choice for {cell.name}; tune first")
        tables, path = grid.settings(cell, choice), run_path(out, cell)
        if path.exists() and _same(grid, cell, path, tables):
            continue
        shared = TRAINED if grid.head.shared else None
        experiment = grid.experiment(cell, tables)
        job = Job(cell, tables, experiment, path, grid.head.shown, shared, grid.head.predictions)
        setting = (cell.values, cell.seed)
        (rest if not grid.head.shared or setting in begun else first).append(job)
        begun.add(setting)
    return [*first, *rest]


def _same(grid: Grid, cell: Cell, path: Path, tables: Mapping[str, Any]) -> bool:
    """Whether a run has these settings; not if it was made with another choice of tuning.

    Raises:
        InputError: If its settings differ in anything else, naming the first.
    """
    before = read_run_file(path)["settings"]
    if digest(before) == digest(tables):
        return True
    if digest(before) in {digest(grid.settings(cell, choice)) for choice in grid.choices(cell.method)}:
        return False
    old, new = dict(flat(before)), dict(flat(tables))
    key = next(k for k in {**new, **old} if old.get(k) != new.get(k))
    values = [f"{key} = {shown(t[key])}" if key in t else f"no {key}" for t in (old, new)]
    raise InputError(
        f"{path}: is a run with {values[0]}, now it is {values[1]}; choose another --out, or remove the file"
    )
