"""A grid's table: a part for each setting, means over seeds, the paper's figures beside them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.divergence import deviation
from fedfi.reproducing import collecting, traffic
from fedfi.reproducing.grid import Cell, Grid, final_of, is_percent, said
from fedfi.reproducing.heading import heading
from fedfi.reproducing.jobs import choice_of, chosen, runs_of

SAID = {"worst class": "worst_class", "agreement, highest": "agreement_largest", "agreement, mean": "agreement_mean"}
NOTHING = "–"


def write(grid: Grid, out: Path) -> str:
    """Writes `table.md`, `results.json`, `curves.csv`, and `traffic.svg` if it is asked for; gives back the first."""
    collecting.collect(grid, out)
    traffic.write(grid, out)
    text = table(grid, out)
    write_atomically(out / "table.md", text.encode())
    return text


def table(grid: Grid, out: Path) -> str:
    """The table in Markdown: mean and sample sd over seeds of what runs came to; accuracies and rankings in %."""
    lines = heading(grid)
    for values in grid.settings_at():
        lines += _setting(grid, out, values)
    return "\n".join(lines)


def _setting(grid: Grid, out: Path, values: tuple[str, ...]) -> list[str]:
    """The part of a setting: a row a method, then where the paper's figures stand."""
    at = dict(zip(grid.axes, values, strict=True))
    beside = [
        key
        for key in grid.head.shown.values()
        if grid.paper and any(grid.paper.figure(key, method, at) for method in grid.methods)
    ]
    columns = list(_columns(grid, beside))
    lines = [f"### {', '.join(values)}" if values else "", ""]
    lines += ["| method | rate | seeds | " + " | ".join(columns) + " | MB down / up | s |"]
    lines += ["|---" * (len(columns) + 5) + "|"]
    for method in grid.methods:
        cell = Cell(method, grid.named(method, values), 0)
        runs = runs_of(grid, out, cell)
        if runs:
            lines.append(_row(grid, out, cell, runs, at, beside))
    return [*lines, "", *_sources(grid, at, beside)]


def _columns(grid: Grid, beside: Sequence[str]) -> Iterator[str]:
    for name, key in grid.head.shown.items():
        yield name
        if key in beside:
            yield f"{name} (paper)"
    yield from SAID if grid.head.predictions else ()


def _row(
    grid: Grid,
    out: Path,
    cell: Cell,
    runs: Sequence[Mapping[str, Any]],
    at: Mapping[str, str],
    beside: Sequence[str],
) -> str:
    cells = []
    for key in grid.head.shown.values():
        cells.append(_mean(runs, key, grid.head.last))
        if key in beside:
            figure = grid.paper.figure(key, cell.method, at) if grid.paper else None
            cells.append(figure[0] if figure else NOTHING)
    for key in SAID.values() if grid.head.predictions else ():
        told = [collecting.said_by(grid, out, Cell(cell.method, cell.values, seed)) for seed in grid.known_seeds]
        shares = [100 * row[key] for row in told if key in row]
        cells.append(f"{statistics.mean(shares):.1f}" if shares else NOTHING)
    down, up = (statistics.mean(run[key] for run in runs) / 1e6 for key in ("bytes_down", "bytes_up"))
    choice = choice_of(chosen(grid, out), cell)
    rate, seconds = "" if choice is None else said(choice), statistics.mean(run["seconds"] for run in runs)
    head = f"| {cell.method} | {rate} | {len(runs)} | "
    return head + " | ".join(cells) + f" | {down:.1f} / {up:.1f} | {seconds:.0f} |"


def _mean(runs: Sequence[Mapping[str, Any]], key: str, last: int) -> str:
    """Mean and sample sd over runs of a number, in the table's unit."""
    found = [final_of(run, key, last) for run in runs if key in run["curves"]]
    if not found:
        return NOTHING
    means = [(100 if is_percent(key) else 1) * statistics.mean(values) for values in found]
    digits = 1 if is_percent(key) or abs(statistics.mean(means)) >= 10 else 2
    apart = deviation(means)
    spread = "" if apart is None else f" ± {apart:.{digits}f}"
    return f"{statistics.mean(means):.{digits}f}{spread}"


def _sources(grid: Grid, at: Mapping[str, str], beside: Sequence[str]) -> list[str]:
    """Where in the paper the figures of a setting stand, a line a column."""
    lines = []
    for name, key in grid.head.shown.items():
        by_source: dict[str, list[str]] = {}
        for method in grid.methods if key in beside else ():
            figure = grid.paper.figure(key, method, at) if grid.paper else None
            if figure is not None:
                by_source.setdefault(figure[1], []).append(method)
        if by_source:
            told = [f"{source}: {', '.join(methods)}" for source, methods in by_source.items()]
            told = list(by_source) if len(by_source) == 1 else told
            lines += [f"*{name} (paper)*: {'; '.join(told)}.", ""]
    return lines
