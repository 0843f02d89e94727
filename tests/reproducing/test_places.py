"""Grids are found in a checkout and in an installed wheel, by their names or by their files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedfi.errors import InputError
from fedfi.reproducing.names import find, index
from fedfi.reproducing.places import folder

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_has_them_at_its_top(tmp_path: Path) -> None:
    package = tmp_path / "src/fedfi"
    package.mkdir(parents=True)
    with pytest.raises(InputError, match="the grids of fedfi are in neither"):
        folder(package)
    (tmp_path / "experiments").mkdir()
    assert folder(package) == tmp_path / "experiments"
    assert folder() == ROOT / "experiments"


def test_a_wheel_has_them_inside(tmp_path: Path) -> None:
    package = tmp_path / "site-packages/fedfi"
    (package / "experiments").mkdir(parents=True)
    (tmp_path / "experiments").mkdir()  # somebody else's
    assert folder(package) == package / "experiments"
    (package / "experiments").rmdir()
    with pytest.raises(InputError, match="install fedfi anew"):
        folder(package)


def test_the_wheel_is_told_to_hold_them() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {"experiments": "fedfi/experiments"}


def test_names_are_found_and_unknown_ones_have_a_nearest() -> None:
    assert find("fedfibos-table1") == find("fedfibos-table2") == find("submodel-cifar10")
    assert find("fedfibos-table1") == ROOT / "experiments/submodel-cifar10.toml"
    assert find("own/grid.toml") == Path("own/grid.toml")
    with pytest.raises(InputError, match="unknown grid 'fedfiot-tabel5'; did you mean 'fedfiot-table5'"):
        find("fedfiot-tabel5")


def test_every_paper_has_grids_and_no_name_is_given_twice() -> None:
    names = index()
    assert {name.partition("-")[0] for name in names} == {"fedfibos", "fedfiot", "fedfihe", "fedrkg"}
    every = [name for key, named in names.items() for name in (key, *named.paper.also, named.path.stem)]
    assert len(set(every)) == len(every)
    assert all({"small", "paper"} <= set(named.scales) for named in names.values())
