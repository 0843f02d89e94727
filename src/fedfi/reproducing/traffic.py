"""What a number comes to for what traffic: a chart of a grid that asks for it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.spent import TOTAL
from fedfi.linechart import Panel, svg
from fedfi.reproducing.grid import Cell, Grid, final_of, is_percent
from fedfi.reproducing.gridfile import OnTraffic
from fedfi.reproducing.jobs import runs_of


def write(grid: Grid, out: Path) -> None:
    """Writes `traffic.svg`, a panel a setting, if the grid names a number for it and has runs of it."""
    wanted = grid.head.traffic
    if wanted is None:
        return
    panels = [_panel(grid, out, values, wanted) for values in grid.settings_at()]
    panels = [panel for panel in panels if panel.lines or panel.levels]
    if panels:
        unit = " (%)" if is_percent(wanted.number) else ""
        drawn = svg(panels, "MB up and down, all users", f"{wanted.number}{unit}", logarithmic=True)
        write_atomically(out / "traffic.svg", drawn.encode())


def _panel(grid: Grid, out: Path, values: tuple[str, ...], wanted: OnTraffic) -> Panel:
    lines: dict[str, list[tuple[float, float]]] = {}
    levels: dict[str, float] = {}
    for method in wanted.methods or grid.methods:
        runs = runs_of(grid, out, Cell(method, grid.named(method, values), 0))
        runs = [run for run in runs if {wanted.number, TOTAL} <= run["curves"].keys()]
        curve = _curve(runs, wanted.number)
        if len(curve) > 1:
            lines[method] = curve
        elif runs:
            found = [statistics.mean(final_of(run, wanted.number, grid.head.last)) for run in runs]
            levels[method] = _unit(wanted.number) * statistics.mean(found)
    return Panel(", ".join(values), lines, levels)


def _curve(runs: Sequence[Mapping[str, Any]], number: str) -> list[tuple[float, float]]:
    """Megabytes and the number, means over seeds, at the rounds that all of them reached."""
    at: dict[float, list[tuple[float, float]]] = {}
    for curves in (run["curves"] for run in runs):
        sent = dict(curves[TOTAL])
        for round, value in curves[number]:
            at.setdefault(round, []).append((sent[round] / 1e6, _unit(number) * value))
    whole = [points for points in at.values() if len(points) == len(runs)]
    return [(statistics.mean(x for x, _ in points), statistics.mean(y for _, y in points)) for points in whole]


def _unit(number: str) -> int:
    return 100 if is_percent(number) else 1
