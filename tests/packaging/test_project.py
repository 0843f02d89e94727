"""What `pyproject.toml` says is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.house.test_structure import INNER, MODULES, OPTIONAL, SOURCE, imports

import fedfi

ROOT = Path(__file__).parents[2]
FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = FILE["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_DEVELOPERS = {"dev", "docs", "bench"}
DISTRIBUTIONS = {"ot": "POT", "dp_accounting": "dp-accounting", "mlflow": "mlflow-skinny"}
"""What a package is called on the index, where that is not the name that is imported."""


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}


def test_the_version_is_semantic_and_stands_in_one_place() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", fedfi.__version__)
    assert PROJECT["dynamic"] == ["version"]
    assert FILE["tool"]["hatch"]["version"]["path"] == "src/fedfi/__init__.py"


def test_types_are_shipped() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_licence_is_there() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])


@pytest.mark.parametrize("package", sorted(OPTIONAL - {"pfl"}))
def test_an_optional_package_is_in_an_extra_that_its_door_names(package: str) -> None:
    """Who lacks it is told in the file that imports it what to install."""
    wanted = DISTRIBUTIONS.get(package, package)
    extras = {extra for extra, required in EXTRAS.items() if wanted in names(required)} - OF_DEVELOPERS
    assert extras
    told = (package, f"torch.utils.{package}")
    (door,) = (n for n in INNER if any(f"{t}.".startswith(f"{w}.") for t in imports(MODULES[n]) for w in told))
    text = (SOURCE / f"{door.replace('.', '/')}.py").read_text()
    assert any(f"'fedfi[{extra}]'" in text for extra in extras) or (
        "'fedfi[{kind}]'" in text and f'"{package}"' in text
    ), f"{door} names none of {sorted(extras)}"


def test_every_extra_that_is_named_anywhere_exists() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.joinpath("docs").rglob("*.md"), *SOURCE.rglob("*.py")]
    for page in pages:
        for found in re.findall(r"fedfi\[([\w, -]+)\]", page.read_text(encoding="utf-8")):
            assert set(re.split(r", ?", found)) <= set(EXTRAS), f"{page}: {found}"


def test_make_installs_every_extra_that_runs_everywhere() -> None:
    (asked,) = re.findall(r"--editable '\.\[(dev[\w,]+)\]'", (ROOT / "Makefile").read_text())
    assert set(asked.split(",")) == set(EXTRAS) - {"threshold", "bench"}


def test_what_is_required_has_a_lower_bound_and_no_upper() -> None:
    for requirement in [*PROJECT["dependencies"], *(r for e, rs in EXTRAS.items() if e != "bench" for r in rs)]:
        assert re.fullmatch(r"[\w.-]+>=[\d.]+", requirement), requirement
