"""`fedfi reproduce`: the grids of the papers by name, or one's own by path."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from fedfi.cli.comparing import parse_seeds
from fedfi.cli.exits import note_workers, stoppable
from fedfi.cli.running import check_writable
from fedfi.errors import InputError
from fedfi.importing import importing_from
from fedfi.reproducing.grid import Grid
from fedfi.reproducing.names import find, index
from fedfi.reproducing.running import Options
from fedfi.reproducing.running import reproduce as run_grid


def show_names(as_json: bool) -> None:
    """Prints all grids by paper: name, table or figure, an estimate of the time, what is measured."""
    rows = rows_of_names()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    before = ""
    for row in rows:
        if row["paper"] != before:
            print(("\n" if before else "") + row["paper"])
            before = row["paper"]
        also = f" (also {', '.join(row['also'])})" if row["also"] else ""
        print(f"  {row['name']:{width}}  {row['shows']}; {row['time']}{also}")
        print(f"  {'':{width}}  {row['measures']}")
    print("\nTimes: estimates for two cores at --scale small. Run one: fedfi reproduce NAME --workers 2 --out DIR")


def rows_of_names() -> list[dict[str, Any]]:
    """What `fedfi reproduce` lists, a row a grid."""
    return [
        {
            "name": name,
            "also": named.paper.also,
            "paper": named.paper.paper,
            "shows": named.paper.shows,
            "measures": named.paper.measures,
            "hours": named.paper.hours,
            "time": time_of(named.paper.hours),
            "figures": sum(len(figure.values) for figure in named.paper.figures),
            "scales": list(named.scales),
            "file": named.path.name,
        }
        for name, named in index().items()
    ]


def time_of(hours: float) -> str:
    """A time as it is said: minutes below an hour."""
    if hours < 1:
        return f"about {round(60 * hours)} minutes"
    return "about an hour" if hours == 1 else f"about {hours:g} hours"


def reproduce(
    name: str,
    scale: str,
    out: Path | None,
    seeds: str | None,
    only: str | None,
    tune_only: bool,
    minutes: float | None,
    workers: int,
    quiet: bool,
) -> None:
    """Tunes and runs what is missing of a grid, then writes and prints its table.

    Args:
        name: A grid's name, or the path of a file of the user's.
        scale: One of its scales.
        out: Its directory; by default below `runs`.
        seeds: The seeds to run instead of the file's, as in ``"0,1"`` or ``"0-4"``.
        only: Labels of methods, separated by commas; None for all.
        tune_only: Stop after tuning.
        minutes: After so many, no run of a later seed is begun.
        workers: Runs side by side.
        quiet: Print nothing but errors.

    Raises:
        InputError: If there is no such grid, scale, seed or method, or `out` holds something else.
        RunError: If runs failed; all others are done.
    """
    path = find(name)
    grid = Grid(path, scale, parse_seeds(seeds) if seeds is not None else ())
    labels = None if only is None else [label.strip() for label in only.split(",") if label.strip()]
    grid.check_labels(labels or [])
    if labels == []:
        raise InputError(f"--only {only}: names no method")
    place = out or Path("runs") / f"{path.stem}-{scale}"
    check_place(place)
    note_workers(workers, sum(1 for _ in grid.cells(only=labels)), "runs", quiet)
    if not quiet:
        print(f"{path} at scale {scale}, in {place}", file=sys.stderr)
    options = Options(workers, labels, math.inf if minutes is None else minutes, quiet)
    with importing_from(Path.cwd(), path.parent), stoppable("the same command"):
        table = run_grid(grid, place, options, tune_only)
    if table is not None and not quiet:
        print(table)


def check_place(out: Path) -> None:
    """Looks whether a grid can be put there.

    Raises:
        InputError: If it is the directory of a single run or of a comparison, or cannot be written to.
    """
    if (out / "run.toml").exists():
        raise InputError(f"--out {out}: is the directory of a single run; name one that is new, or a grid's")
    if (out / "table.csv").exists():
        raise InputError(f"--out {out}: is the directory of a comparison; name one that is new, or a grid's")
    check_writable(out)
