"""Every cell of the one-shot grids is a valid experiment, without reading any data."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedfi.experiment import from_dict

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("oneshot-*.toml")), ids=lambda p: p.stem)
def test_cells_are_valid(path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from grid import Grid  # as a script finds it

    for scale in ("small", "try"):
        grid = Grid(path, scale)
        cells = list(grid.cells())
        assert cells
        assert next(iter(cells)).method == ("average" if path.stem.endswith("rounds") else "ensemble")
        for cell in cells:
            experiment = from_dict(grid.settings(cell, 0.02), source=cell.name)
            assert experiment.algorithm() is not None
            assert experiment.settings.rounds == (4 if path.stem.endswith("rounds") else 1)
    sys.modules.pop("grid", None)
