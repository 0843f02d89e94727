"""Run directories as they are read: nothing is computed that a run has not written down."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedfi.errors import InputError
from fedfi.federation.exhibits import read_exhibit
from fedfi.federation.packet import Packet
from fedfi.federation.record import read_lines
from fedfi.federation.spent import is_spent, spent
from fedfi.federation.stopping import best_line

_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class RunRecord:
    """One run directory.

    Attributes:
        path: The directory.
        label: What its curves are called; runs of one label differ in their seeds.
        config: `run.toml`.
        metrics: The lines of `metrics.jsonl`.
        events: The lines of `events.jsonl` that stand.
        split: `split.json`, or nothing.
        environment: `env.json`, or nothing.
    """

    path: Path
    label: str
    config: Mapping[str, Any]
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]
    split: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def rounds(self) -> int:
        """Rounds that are done."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def finished(self) -> bool:
        """Whether the run came to the end of its rounds."""
        return any(e["event"] == "done" for e in self.events)

    @property
    def chosen_by(self) -> str | None:
        """The number of the validation by which the best round is chosen, if one is."""
        found = self.config.get("evaluate", {}).get("best")
        return None if found is None else str(found)

    @property
    def stopped(self) -> int | None:
        """The round after which the run gave up waiting for a better one, if it did."""
        return next((e.get("stopped") for e in reversed(self.events) if e["event"] == "done"), None)

    @property
    def result(self) -> dict[str, Any]:
        """The line of the best round where one is chosen, else of the last that was judged; empty before the first.

        What a run spends, such as privacy, is not in it: that is of the whole run, whichever round is chosen (`spent`).
        """
        if self.chosen_by:
            line = best_line(self.metrics, self.chosen_by) or {}
        else:
            line = next((line for line in reversed(self.metrics) if judged(line)), {})
        return {key: value for key, value in line.items() if not is_spent(key)}

    @property
    def spent(self) -> dict[str, float]:
        """What all rounds together have spent, such as ``"privacy/epsilon"``."""
        return spent(self.metrics)

    @property
    def outcome(self) -> dict[str, Any]:
        """The result, and what was spent for it."""
        return {**self.result, **self.spent}

    def total(self, key: str) -> float:
        """The sum of a number over all rounds."""
        return float(sum(line.get(key, 0) for line in self.metrics))

    def exhibit(self, name: str, *tables: str) -> Packet | None:
        """What the run keeps under a name to be shown (`federation.exhibits`); None where there is nothing.

        Args:
            name: The exhibit.
            tables: What it must hold.

        Raises:
            InputError: If it cannot be read, or lacks a table.
        """
        found = read_exhibit(self.path, name)
        lacking = [] if found is None else [table for table in tables if table not in found.tensors]
        if lacking:
            raise InputError(f"{self.path}: what it keeps to be shown as {name!r} lacks {lacking[0]!r}")
        return found

    def with_metrics(self, metrics: list[dict[str, Any]]) -> RunRecord:
        """The same with other lines."""
        return replace(self, metrics=metrics)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind that stand."""
        return [e for e in self.events if e["event"] == kind]


def read_run(path: Path, label: str = "") -> RunRecord:
    """Reads a run directory.

    Raises:
        InputError: If it is none, or a file of it cannot be read.
    """
    if not (path / "run.toml").exists():
        raise InputError(f"{path}: is not a run directory: it has no run.toml")
    try:
        config = tomllib.loads((path / "run.toml").read_text(encoding="utf-8-sig"))
        return RunRecord(
            path=path,
            label=label or str(config.get("algorithm", {}).get("name", path.name)),
            config=config,
            metrics=read_lines(path / "metrics.jsonl"),
            events=standing(read_lines(path / "events.jsonl")),
            split=_read_json(path / "split.json"),
            environment=_read_json(path / "env.json"),
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def read_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Reads run directories, and those below a directory that is none itself, such as that of a comparison.

    A run below such a directory is called by its folder, without the seed; other runs by their method, and
    where that is the same for two of them, by their directory.

    Raises:
        InputError: If there is no run at a path.
    """
    runs = []
    for path in paths:
        below = run_directories(path)
        if not below:
            raise InputError(f"{path}: is not a run directory, nor does it hold one")
        if below == [path]:
            runs.append(read_run(path))
            continue
        for found in below:
            seeded = found.name.startswith("seed-") and found.parent != path
            name = found.parent if seeded else found
            runs.append(read_run(found, str(name.relative_to(path))))
    direct = [run for run in runs if (run.path in set(paths))]
    names = [run.label for run in direct]
    if len(set(names)) < len(names):
        renamed = {run.path: read_run(run.path, run.path.name) for run in direct}
        runs = [renamed.get(run.path, run) for run in runs]
    return runs


def run_directories(path: Path) -> list[Path]:
    """A run directory itself, or those below a directory that is none, in order."""
    return [path] if (path / "run.toml").exists() else sorted(p.parent for p in path.glob("**/run.toml"))


def standing(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events that a resume has not superseded: of rounds done again, only the last time counts."""
    kept: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "resume":
            first = event["round"]
            kept = [e for e in kept if e["event"] != "done" and e.get("round", 0) < first]
        kept.append(dict(event))
    return kept


def judged(line: Mapping[str, Any]) -> bool:
    """Whether a line of `metrics.jsonl` holds an evaluation."""
    return any(key.startswith(("global/", "local/", "personal/", "ranking/")) for key in line)


def percent(share: float) -> str:
    """A share, such as an accuracy, in percent; the one way in which commands and pages show it."""
    return f"{share:.2%}"


def rounds_of(count: int) -> str:
    """A number of rounds with its noun."""
    return f"{count} round" if count == 1 else f"{count} rounds"


def size(count: float) -> str:
    """A number of bytes with its unit (1 kB = 1000 B)."""
    scale, unit = unit_for(count)
    return f"{count:.0f} {unit}" if unit == "B" else f"{count / scale:.1f} {unit}"


def unit_for(most: float) -> tuple[float, str]:
    """The unit in which so many bytes are read best, and its bytes."""
    scale = 1.0
    for unit in _UNITS[:-1]:
        if most < 1000 * scale:
            return scale, unit
        scale *= 1000
    return scale, _UNITS[-1]


def _read_json(path: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content
