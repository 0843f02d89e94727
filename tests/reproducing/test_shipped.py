"""Every cell of every grid that comes with fedfi is a valid experiment, without reading any data."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfi.reproducing.grid import Cell, Grid
from fedfi.reproducing.names import index

ROOT = Path(__file__).resolve().parents[2]
NAMED = index()
COMMANDS = {name: f"fedfi reproduce {name} " for name in NAMED}


@pytest.mark.parametrize("name", NAMED)
def test_cells_are_valid_at_every_scale(name: str) -> None:
    for scale in NAMED[name].scales:
        grid = Grid(NAMED[name].path, scale)
        cells = list(grid.cells(grid.seeds[:1]))
        assert cells
        for cell in cells:
            for choice in {str(c): c for c in (grid.choices(cell.method)[0], grid.choices(cell.method)[-1])}.values():
                experiment = grid.experiment(cell, grid.settings(cell, choice))
                assert experiment.algorithm() is not None


@pytest.mark.parametrize("name", NAMED)
def test_the_head_of_a_file_names_the_command_that_runs_it(name: str) -> None:
    path = NAMED[name].path
    comments = "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    assert COMMANDS[name] in comments
    assert "grid.py" not in path.read_text()


def test_the_small_oneshot_grids_are_one_exchange_and_the_one_of_few_rounds_four() -> None:
    for name, named in NAMED.items():
        if named.path.stem.startswith("oneshot"):
            grid = Grid(named.path)
            cell = next(grid.cells())
            assert cell.method == ("average" if name == "fedfiot-figure2" else "ensemble")
            assert grid.settings(cell, 0.02)["rounds"] == (4 if name == "fedfiot-figure2" else 1)


def test_figures_are_those_of_the_papers_tables() -> None:
    """FedFiOT, arXiv 2611.06783: Tables 1, 2, 3 and 5 on CIFAR-10, Table 1 on others."""
    paper = NAMED["fedfiot-table1"].paper
    for alpha, method, expected in [
        ("0.2", "average", "34.0 ± 0.8"),
        ("0.1", "fedfisher-kfac", "38.6 ± 2.1"),
        ("0.1", "fedfiot-as-published", "43.3 ± 1.8"),
        ("0.1", "fedfiot-32-bit", "44.6 ± 1.3"),
        ("0.05", "pfnm", "20.5 ± 3.0"),
    ]:
        found = paper.figure("global/accuracy", method, {"alpha": alpha})
        assert found is not None
        assert found[0] == expected
    independent = NAMED["fedfiot-table5"].paper.figure("global/accuracy", "dense", {"alpha": "0.1"})
    assert independent == ("28.4 ± 0.6", "Table 5")
    for name, wb, kfac in [("svhn", "34.7 ± 2.3", "61.6 ± 3.6"), ("cinic10", "25.4 ± 0.8", "32.0 ± 0.5")]:
        other = NAMED[f"fedfiot-{name}"].paper
        assert other.figure("global/accuracy", "wbfusion", {"alpha": "0.1"}) == (wb, "Table 1")
        assert other.figure("global/accuracy", "fedfisher-kfac", {"alpha": "0.1"}) == (kfac, "Table 1")
    whole = NAMED["fedfiot-whole"].paper
    assert whole.figure("global/accuracy", "average", {"alpha": "0.1", "start": "shared"}) == ("30.3 ± 1.0", "Table 1")
    assert NAMED["fedfiot-resnet"].paper.figures == ()


def test_files_that_are_no_grids_have_no_names() -> None:
    folder = NAMED["fedfibos-table1"].path.parent
    assert {path.stem for path in folder.glob("*.toml")} - {named.path.stem for named in NAMED.values()} == {
        "audit", "fedfibos-search",
    }  # fmt: skip
    assert isinstance(folder, Path)


def test_the_page_names_every_grid_and_its_example_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/reproduce.md").read_text()
    short = {name.partition("-")[2] for name in NAMED}
    assert [name for name in short if f"{name}`" not in page] == []
    (tmp_path / "own.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    for scale, rounds in (("small", 40), ("paper", 400)):
        grid = Grid(tmp_path / "own.toml", scale)
        cell = Cell("fedprox", ("hard",), 0)
        assert len(list(grid.cells())) == 2 * 2 * 2
        assert len(grid.choices("fedprox")) == 2
        for choice in grid.choices("fedprox"):
            assert grid.experiment(cell, grid.settings(cell, choice)).settings.rounds == rounds
