"""A user's own modules are found wherever a command is called, as long as they are where they were."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULE = """
from fedfi import FedAvg, load
from fedfi.models import build

def wide(spec, units: int = 8):
    return build("mlp", spec, {"hidden": [units]})

def digits():
    return load("digits")

class Mean(FedAvg):
    pass
"""
OWN = {"digits": "homemade:digits", "mlp": "homemade:wide", "fedfibos": "homemade:Mean"}


@pytest.fixture
def home(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An experiment with a model, data and method of one's own, in the working directory."""
    Path("homemade.py").write_text(MODULE)
    text = file.read_text().replace('capacities = { "1.0" = 0.5, "0.25" = 0.5 }\n', "").replace("hidden = [8]\n", "")
    for name, own in OWN.items():
        text = text.replace(f'"{name}"', f'"{own}"')
    file.write_text(text)
    yield Path.cwd()
    forget()


def forget() -> None:
    """What a new process would not know."""
    sys.modules.pop("homemade", None)


def away(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    (home / "away").mkdir(exist_ok=True)
    monkeypatch.chdir(home / "away")


def test_resume_and_report_from_elsewhere(home: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    path = list(sys.path)
    assert fedfi("run", "exp.toml", "--out", "a", "-q") == (0, "", "")
    assert json.loads(Path("a/env.json").read_text())["import_from"] == [str(home)]
    away(home, monkeypatch)
    assert fedfi("resume", "../a", "--rounds", "3", "-q") == (0, "", "")
    forget()
    assert fedfi("report", "../a", "-o", "page.html", "-q") == (0, "", "")
    assert fedfi("run", "../a/run.toml", "--out", "b", "-q") == (0, "", "")
    assert sys.path == path


def test_export_audit_and_recommend_from_elsewhere(home: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedfi("run", "exp.toml", "--out", "a", "-q") == (0, "", "")
    away(home, monkeypatch)
    assert fedfi("export", "../a", "-o", "whole.safetensors", "-q") == (0, "", "")
    forget()
    assert fedfi("audit", "../a", "--clients", "1", "--iterations", "1", "--out", "audit", "-q")[0] == 0
    forget()
    code, _, err = fedfi("recommend", "../a", "--user", "1")
    assert (code, "recommends nothing" in err) == (2, True)  # found, and no recommender


def test_beside_the_file(home: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    away(home, monkeypatch)
    assert fedfi("run", "../exp.toml", "--out", "a", "-q") == (0, "", "")
    assert json.loads(Path("a/env.json").read_text())["import_from"] == [str(home / "away"), str(home)]


def test_compare_from_elsewhere(home: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedfi("compare", "exp.toml", "--out", "all", "--seeds", "0", "-q") == (0, "", "")
    away(home, monkeypatch)
    shutil.copy(home / "exp.toml", "exp.toml")  # whose module is beside the first one
    assert fedfi("compare", "exp.toml", "--out", "../all", "--seeds", "0,1", "-q") == (0, "", "")


def test_the_error_says_where_it_looked(home: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    fedfi("run", "exp.toml", "--out", "a", "-q")
    Path("homemade.py").unlink()
    away(home, monkeypatch)
    code, _, err = fedfi("resume", "../a", "--rounds", "3")
    assert (code, err.count("\n")) == (2, 1)
    assert "No module named 'homemade'" in err
    assert f"(looked in {home}, {home / 'away'})" in err
