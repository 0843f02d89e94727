"""The grids that come with fedfi, by name; each file says its own in `[paper]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedfi.errors import InputError, unknown
from fedfi.experiment import read_toml
from fedfi.reproducing.grid import Grid
from fedfi.reproducing.paper import Paper
from fedfi.reproducing.places import folder

LISTED_BY = "fedfi reproduce"


@dataclass(frozen=True)
class Named:
    """A grid that comes with fedfi.

    Attributes:
        path: Its file.
        paper: What it says of itself.
        scales: Its scales.
    """

    path: Path
    paper: Paper
    scales: tuple[str, ...]


def index(places: Path | None = None) -> dict[str, Named]:
    """All grids that have a name, by it, those of a paper beside each other.

    Args:
        places: The folder to look in; by default that of fedfi's own.
    """
    found = []
    for path in sorted((places or folder()).glob("*.toml")):
        if "name" in read_toml(path).get("paper", {}):
            grid = Grid(path)
            if grid.paper is not None:
                found.append(Named(path, grid.paper, grid.scales))
    return {named.paper.name: named for named in sorted(found, key=lambda n: (n.paper.paper, n.path.stem))}


def find(given: str) -> Path:
    """The file of a grid.

    Args:
        given: One of its names, or the path of a file of the user's.

    Raises:
        InputError: If no grid is called so, with the nearest name.
    """
    if given.endswith(".toml") or "/" in given:
        return Path(given)
    names = index()
    for name, named in names.items():
        if given in (name, *named.paper.also, named.path.stem):
            return named.path
    every = [name for key, named in names.items() for name in (key, *named.paper.also)]
    raise InputError(unknown("grid", given, every, LISTED_BY) + "; your own: a path that ends in .toml")
