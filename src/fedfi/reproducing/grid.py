"""A grid at one scale: its runs, and the experiment of each."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedfi.composing import choose
from fedfi.errors import InputError, unknown
from fedfi.experiment import Experiment, from_dict
from fedfi.federation.spent import is_spent, is_total
from fedfi.reproducing.gridfile import OF_METHOD, OF_SCALE, check, merged, read
from fedfi.reproducing.paper import Paper, check_paper
from fedfi.validation import shown

Choice = float | dict[str, Any]
"""A learning rate, or values by dotted keys."""
ANY = "any"
"""The value of an axis that means nothing to a method."""


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


@final
class Grid:
    """What a grid file says at one scale.

    Args:
        path: The file.
        scale: One of its scales.
        seeds: The seeds to run instead of the file's.

    Attributes:
        head: The keys at the head of the file.
        axes: What each value of each axis changes.
        methods: What each method changes, with its own keys.
        paper: What is said of the paper, if anything is.
        seeds: The seeds to run.
        known_seeds: Those, and the file's.
        scales: The file's scales.
        tuning_rounds: Rounds of a tuning run; None for all.

    Raises:
        InputError: If the file is not valid, or has no such scale.
    """

    def __init__(self, path: Path, scale: str = "small", seeds: Sequence[int] = ()) -> None:
        self.path, self.scale, self.source = path, scale, str(path)
        self._tables = read(path)
        self.head = check(self._tables, self.source)
        if scale not in self._tables["scale"]:
            raise InputError(f"--scale: {self.source}: {unknown('scale', scale, self._tables['scale'])}")
        self.scales = tuple(self._tables["scale"])
        changes = dict(self._tables["scale"][scale])
        own = {key: changes.pop(key) for key in OF_SCALE if key in changes}
        self._base = merged(self._tables.get("base", {}), changes)
        self._rates, self._tune = own.get("rates", self._tables["rates"]), own.get("tune", {})
        self.tuning_rounds: int | None = own.get("tuning_rounds")
        self.axes: dict[str, dict[str, Any]] = self._tables.get("axis", {})
        self.methods = {label: self._at_scale(keys) for label, keys in self._tables["method"].items()}
        self.paper = self._paper()
        listed: list[int] = own.get("seeds", self._tables["seeds"])
        self.tuning_seed, self.seeds = listed[0], list(seeds or listed)
        self.known_seeds = list(dict.fromkeys([*listed, *self.seeds]))
        self._check_names()

    def _at_scale(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        own = keys.get("scale", {}).get(self.scale, {})
        return merged({key: value for key, value in keys.items() if key != "scale"}, own)

    def _paper(self) -> Paper | None:
        if "paper" not in self._tables:
            return None
        return check_paper(self._tables["paper"], self.source, self.axes, self.methods, list(self.head.shown.values()))

    def _check_names(self) -> None:
        seen: dict[str, Cell] = {}
        for cell in self.cells(self.known_seeds):
            if cell.name in seen:
                raise InputError(f"{self.source}: two runs would be called {cell.name!r}: rename a method or a value")
            seen[cell.name] = cell

    def settings_at(self) -> Iterator[tuple[str, ...]]:
        """Every combination of values of the axes."""
        return itertools.product(*self.axes.values())

    def choices(self, method: str) -> list[Choice]:
        """What tuning chooses from for a method."""
        rates = self.methods[method].get("rates", self._rates)
        tune = {**self._tune, **self.methods[method].get("tune", {})}
        if not tune:
            return list(rates)
        keys = ("train.learning_rate", *tune)
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(rates, *tune.values())]

    def skips(self, method: str, values: tuple[str, ...], seed: int | None = None) -> bool:
        """Whether a method is not run at some values of the axes, or with a seed."""
        skip = self.methods[method].get("skip", {})
        others = seed is not None and seed not in self.methods[method].get("seeds", [seed])
        return others or any(v in skip.get(a, []) for a, v in zip(self.axes, values, strict=True))

    def named(self, method: str, values: tuple[str, ...]) -> tuple[str, ...]:
        """Values of the axes, with `ANY` for those that mean nothing to a method."""
        ignored = self.methods[method].get("ignores", [])
        return tuple(ANY if a in ignored else v for a, v in zip(self.axes, values, strict=True))

    def repeats(self, method: str, values: tuple[str, ...]) -> bool:
        """Whether the run at these values is that at other ones, since axes that differ mean nothing to the method."""
        pairs = zip(self.axes.items(), values, self.named(method, values), strict=True)
        return any(name == ANY and value != next(iter(axis)) for (_, axis), value, name in pairs)

    def cells(self, seeds: Sequence[int] | None = None, only: Collection[str] | None = None) -> Iterator[Cell]:
        """All runs, the first seed of everything first.

        Args:
            seeds: Which seeds; by default those to run.
            only: Labels of methods; by default all.
        """
        for seed in self.seeds if seeds is None else seeds:
            for values in self.settings_at():
                for method in self.methods:
                    left_out = only is not None and method not in only
                    if not (left_out or self.skips(method, values, seed) or self.repeats(method, values)):
                        yield Cell(method, self.named(method, values), seed)

    def settings(self, cell: Cell, choice: Choice, rounds: int | None = None) -> dict[str, Any]:
        """The tables of a cell's experiment.

        Args:
            cell: Which.
            choice: What tuning chose.
            rounds: At most so many.
        """
        tables = self._base
        for axis, value in zip(self.axes, cell.values, strict=True):
            if value != ANY:
                changes = dict(self.axes[axis][value])
                own = changes.pop("scale", {}).get(self.scale, {})
                tables = merged(merged(tables, changes), own)
        changes = {k: v for k, v in self.methods[cell.method].items() if k not in OF_METHOD}
        tables = merged({**tables, "algorithm": self._applying(cell, tables, changes)}, changes)
        tables = merged(tables, {"seed": cell.seed})
        for key, chosen in (choice if isinstance(choice, dict) else {"train.learning_rate": choice}).items():
            table, _, name = key.partition(".")
            tables = merged(tables, {table: {name: chosen}})
        return tables if rounds is None else tables | {"rounds": min(rounds, tables["rounds"])}

    def _applying(self, cell: Cell, tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of `[algorithm]` that apply to the method of a cell."""
        before = tables.get("algorithm", {})
        name = changes.get("algorithm", {}).get("name", before.get("name"))
        if name is None:
            raise InputError(f"{self.source} ({cell.name}): algorithm.name: is missing")
        try:
            return choose(before, name)
        except InputError as error:
            raise InputError(f"{self.source} ({cell.name}): algorithm.name = {shown(name)}: {error}") from error

    def experiment(self, cell: Cell, tables: Mapping[str, Any]) -> Experiment:
        """The experiment of a cell's tables.

        Raises:
            InputError: If it is not valid, naming the file and the run.
        """
        return from_dict(tables, source=f"{self.source} ({cell.name})")

    def check_labels(self, given: Sequence[str]) -> None:
        """Checks that all are methods of the grid.

        Raises:
            InputError: Naming the first that is none, and the nearest.
        """
        for label in given:
            if label not in self.methods:
                raise InputError(f"--only: {self.source}: {unknown('method', label, self.methods)}")


def said(choice: Choice) -> str:
    """A choice in a line; a learning rate alone is its number."""
    if not isinstance(choice, dict):
        return str(choice)
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in choice.items())


def digest(tables: Mapping[str, Any]) -> str:
    """What tells two experiments apart; of no other order of keys."""
    return hashlib.blake2b(json.dumps(tables, sort_keys=True).encode(), digest_size=8).hexdigest()


def final_of(found: Mapping[str, Any], key: str, last: int) -> list[float]:
    """What a run came to: its value in the best round where one is chosen, else the last ones.

    Of a running total, such as bytes, the last one alone; what is spent, such as privacy, is that of all rounds.

    Args:
        found: The content of a run's file.
        key: Of which number.
        last: How many evaluations.
    """
    curve = found["curves"][key]
    if is_spent(key):
        return [curve[-1][1]]
    best = [value for at, value in curve if at == found.get("best")]
    return best or [value for _, value in curve[-1 if is_total(key) else -last :]]


def is_percent(key: str) -> bool:
    """Whether tables show a number in percent."""
    return "accuracy" in key or "ranking/" in key or key == "permuted"


def better(value: float, sign: int) -> float:
    """A number as something of which more is better; what is no number is worst."""
    return -math.inf if math.isnan(value) else sign * value
