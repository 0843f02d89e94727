"""Where the grids lie that come with fedfi: inside an installed package, beside a source checkout."""

from __future__ import annotations

from pathlib import Path

from fedfi.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def folder(package: Path = _PACKAGE) -> Path:
    """The folder of the grid files.

    Args:
        package: Where fedfi lies; a wheel holds the files inside it, a checkout has them at its top.

    Raises:
        InputError: If they are in neither place.
    """
    inside, beside = package / "experiments", package.parents[1] / "experiments"
    if inside.is_dir():
        return inside
    if package.parent.name == "src" and beside.is_dir():
        return beside
    raise InputError(f"the grids of fedfi are in neither {inside} nor {beside}: install fedfi anew, or name a file")
