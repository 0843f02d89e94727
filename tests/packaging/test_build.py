"""What is built has all that it should, and works where only it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import fedfi

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made of it."""
    for package in ("build", "hatchling"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def kept(folder: str) -> set[str]:
    """What git has in a folder, as far as it is there."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_sdist_has_what_tests_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("src", "tests", "docs", "examples", "experiments", "results", "benchmarks"):
        assert kept(folder) <= names, folder
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", "mkdocs.yml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "site/", "runs/"))]


def test_the_wheel_has_the_library_alone_and_all_of_it(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    assert {name.removeprefix("src/") for name in kept("src")} <= names
    assert "fedfi/py.typed" in names
    about = f"fedfi-{fedfi.__version__}.dist-info/"
    assert all(name.startswith(("fedfi/", about)) for name in names)


def test_the_metadata_are_right(built: tuple[Path, Path]) -> None:
    about = f"fedfi-{fedfi.__version__}.dist-info"
    with zipfile.ZipFile(built[1]) as archive:
        found = Parser().parsestr(archive.read(f"{about}/METADATA").decode())
        assert f"{about}/licenses/LICENSE" in archive.namelist()
        assert "fedfi = fedfi.cli:main" in archive.read(f"{about}/entry_points.txt").decode()
    assert found["Version"] == fedfi.__version__
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"


def test_an_index_would_take_it(built: tuple[Path, Path]) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unpacked_wheel_works_outside_of_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    there = tmp_path / "there"
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(there)
    (tmp_path / "exp.toml").write_text((ROOT / "examples/digits.toml").read_text())
    environment = {**os.environ, "PYTHONPATH": str(there)}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run("-c", "import fedfi; print(fedfi.__file__)").strip()
    assert Path(where).is_relative_to(there)
    assert run("-m", "fedfi", "--version").strip() == fedfi.__version__
    assert "rounds: 1" in run("-m", "fedfi", "run", "exp.toml", "--rounds", "1", "--out", "run")
    assert (tmp_path / "run/model.safetensors").exists()
