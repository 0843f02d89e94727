"""A grid's numbers for other programs: `results.json`, a run each, and `curves.csv`, means over seeds."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.divergence import deviation
from fedfi.reproducing import predictions
from fedfi.reproducing.grid import Cell, Grid, final_of
from fedfi.reproducing.jobs import read_run_file, run_path

Curves = dict[tuple[str, ...], list[float]]
"""Values over seeds by setting, method, number and round."""


def collect(grid: Grid, out: Path) -> None:
    """Writes both files, of all runs that are there."""
    rows, curves = [], Curves()
    for cell in grid.cells(grid.known_seeds):
        path = run_path(out, cell)
        if path.exists():
            found = read_run_file(path)
            rows.append(_row(grid, out, cell, found))
            _add(curves, cell, found)
    write_atomically(out / "results.json", ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode())
    write_atomically(out / "curves.csv", _csv(grid, curves).encode())


def _row(grid: Grid, out: Path, cell: Cell, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "setting": list(cell.values),
        "method": cell.method,
        "seed": cell.seed,
        "rounds": found["settings"]["rounds"],
        "learning_rate": found["settings"]["train"]["learning_rate"],
        **{key: found[key] for key in ("failures", "bytes_down", "bytes_up", "seconds")},
        **({"best": found["best"]} if found.get("best") else {}),
        **{key: round(statistics.mean(final_of(found, key, grid.head.last)), 5) for key in found["curves"]},
        **said_by(grid, out, cell),
    }


def said_by(grid: Grid, out: Path, cell: Cell) -> dict[str, Any]:
    """What predictions of a run come to, where they are kept."""
    if not grid.head.predictions:
        return {}
    cells = [Cell(method, cell.values, cell.seed) for method in (cell.method, "ensemble")]
    return predictions.figures(*(run_path(out, c).with_suffix(".npz") for c in cells))


def _add(curves: Curves, cell: Cell, found: Mapping[str, Any]) -> None:
    for key, points in found["curves"].items():
        for at, value in points:
            curves.setdefault((*cell.values, cell.method, key, str(int(at))), []).append(value)


def _csv(grid: Grid, curves: Curves) -> str:
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow([*grid.axes, "method", "metric", "round", "seeds", "mean", "sd"])
    for key, values in curves.items():
        spread = deviation(values)
        apart = "" if spread is None else round(spread, 5)
        rows.writerow([*key, len(values), round(statistics.mean(values), 5), apart])
    return text.getvalue()
