"""Choosing learning rates, and what else a grid leaves open, on validation examples.

A method's choice is the one whose global model is best after `tuning_rounds` of the first seed, for each value of the
first axis, at the first value of the others. Nothing of the test set is looked at.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedfi.experiment import Experiment
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run
from fedfi.federation.stopping import best_line, lower_is_better
from fedfi.federation.task import Task
from fedfi.parallel import Tell, Work
from fedfi.reproducing.grid import Cell, Choice, Grid, better, said
from fedfi.reproducing.jobs import TRAINED, read_tuning, tuning_key
from fedfi.reproducing.performing import Tasks

_MOST_ENDS = 2
"""Of so many values each is at an end."""


@dataclass(frozen=True)
class Trial:
    """A choice to be tried.

    Attributes:
        key: Method and value of the first axis, as in `tuning.json`.
        choice: What is tried.
        tables: The settings of its experiment.
        experiment: The experiment.
    """

    key: str
    choice: Choice
    tables: dict[str, Any]
    experiment: Experiment


class Tuning:
    """`tuning.json`: what was tried, what it came to, and the best.

    Args:
        grid: The grid.
        out: Its directory.
    """

    def __init__(self, grid: Grid, out: Path) -> None:
        self._grid, self._path = grid, out / "tuning.json"
        self._name = grid.head.metric.replace("/", "_")
        self._found: dict[str, dict[str, float]] = read_tuning(grid, out).get(self._name, {})

    def trials(self, only: Collection[str] | None = None) -> list[Trial]:
        """What is yet to be tried.

        Args:
            only: Labels of methods; by default all.
        """
        return [trial for cell in self._cells(only) for trial in self._of(cell)]

    def _cells(self, only: Collection[str] | None) -> Iterator[Cell]:
        """The runs that stand for a method at a value of the first axis."""
        grid, planned = self._grid, set[str]()
        firsts = [next(iter(values)) for values in list(grid.axes.values())[1:]]
        for value in next(iter(grid.axes.values()), {"": {}}):
            values = (value, *firsts)[: len(grid.axes)]
            for method in grid.methods:
                cell = Cell(method, grid.named(method, values), grid.tuning_seed)
                left_out = (only is not None and method not in only) or grid.skips(method, values)
                if left_out or len(grid.choices(method)) == 1 or _key(cell) in planned:
                    continue
                planned.add(_key(cell))
                yield cell

    def _of(self, cell: Cell) -> Iterator[Trial]:
        rounds = self._grid.methods[cell.method].get("tuning_rounds", self._grid.tuning_rounds)
        for choice in self._grid.choices(cell.method):
            if said(choice) not in self._found.get(_key(cell), {}):
                tables = self._grid.settings(cell, choice, rounds)
                yield Trial(_key(cell), choice, tables, self._grid.experiment(cell, tables))

    def keep(self, trial: Trial, value: float) -> None:
        """Notes what a trial came to."""
        self._found.setdefault(trial.key, {})[said(trial.choice)] = value
        best = {key: best_of(self._grid, key.partition("/")[0], row) for key, row in self._found.items()}
        content = {"rounds": self._grid.tuning_rounds, self._name: self._found, "best": best}
        write_atomically(self._path, (json.dumps(content, indent=1) + "\n").encode())

    def doubts(self, only: Collection[str] | None = None) -> list[str]:
        """What is doubtful about choices: equals, of which the first was taken, and ends of what was tried.

        Args:
            only: Labels of methods; by default all.
        """
        rows = ((cell.method, _key(cell), self._found.get(_key(cell), {})) for cell in self._cells(only))
        return [f"{key}: {text}" for method, key, row in rows if row for text in _doubts(self._grid, method, row)]


def _doubts(grid: Grid, method: str, row: Mapping[str, float]) -> Iterator[str]:
    best, choices = best_of(grid, method, row), grid.choices(method)
    equals = [said(c) for c in choices if row.get(said(c)) == row[said(best)] and said(c) != said(best)]
    if equals:
        yield f"{said(best)} was taken, the first of equals; so good are {'; '.join(equals)}"
    for name, value in _values(best).items():
        tried = {_values(choice)[name] for choice in choices}
        if len(tried) > _MOST_ENDS and value in (min(tried), max(tried)):
            yield f"{name} {value} is at an end of what was tried; widen it"


def _values(choice: Choice) -> dict[str, float]:
    """The numbers of a choice."""
    if not isinstance(choice, dict):
        return {"learning_rate": choice}
    numbers = {key.rpartition(".")[2]: value for key, value in choice.items()}
    return {key: v for key, v in numbers.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _key(cell: Cell) -> str:
    return tuning_key(cell.method, cell.values[0] if cell.values else "")


def works(grid: Grid, trials: Collection[Trial], tasks: Tasks) -> Iterator[Work]:
    """The work of each trial, whose result is a number as JSON."""
    for trial in trials:
        task = replace(tasks.of(trial.experiment, trial.tables), shared=TRAINED if grid.head.shared else None)
        yield functools.partial(_try, trial, task, grid.head.metric)


def _try(trial: Trial, task: Task, metric: str, tell: Tell) -> str:
    settings = trial.experiment.settings
    judged = settings.evaluate if settings.evaluate.best else Evaluate(every=10_000, levels=False, local=False)
    result = run(
        trial.experiment.algorithm(),
        task,
        rounds=settings.rounds,
        seed=settings.seed,
        evaluate=judged,
        min_replies=settings.min_replies,
        observe=tell,
    )
    line = best_line(result.metrics, metric)
    return json.dumps(math.nan if line is None else float(line[metric]))


def best_of(grid: Grid, method: str, row: Mapping[str, float]) -> Choice:
    """The best of a method's choices, by what each came to.

    Args:
        grid: The grid.
        method: The method's label.
        row: What was found, by choice in words.
    """
    sign = -1 if lower_is_better(grid.head.metric) else 1
    known = [choice for choice in grid.choices(method) if said(choice) in row]
    return max(known, key=lambda choice: better(row[said(choice)], sign))
