"""A client that fails: the commands say why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NORMED = """
from torch import nn

def normed(spec):
    return nn.Sequential(nn.Linear(spec.shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, spec.classes))
"""
EXPERIMENT = """
rounds = 2

[data]
name = "rows.csv"
label = "y"
partition = { by = "natural", column = "place" }

[model]
name = "normednet:normed"

[algorithm]
name = "fedavg"
"""


@pytest.fixture
def uneven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An experiment in which one client holds one row, and the model has batch norms."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 3},{i % 2},{'ab'[i % 2]}" for i in range(40)]
    Path("rows.csv").write_text("\n".join(["x1,x2,y,place", *rows, "1,2,0,lonely"]) + "\n")
    Path("normednet.py").write_text(NORMED)
    Path("exp.toml").write_text(EXPERIMENT)
    yield Path("exp.toml")
    sys.modules.pop("normednet", None)


def test_run_and_compare_say_why_clients_failed(uneven: Path, fedfi) -> None:
    code, out, _ = fedfi("run", uneven, "--out", "a")
    assert code == 0
    line = next(line for line in out.splitlines() if "lonely" in line)
    assert line.startswith("  client 'lonely', 2 rounds: ValueError: Expected more than 1 value per channel")
    assert "leave out clients that hold one" in line
    assert "client failures: 2\n" in out
    code, _, err = fedfi("compare", uneven, "--algorithms", "fedavg,fedprox", "--out", "c")
    assert code == 0
    for method in ("fedavg", "fedprox"):
        assert f"{method} seed 0: client 'lonely', 2 rounds: ValueError: Expected more than 1 value" in err


def test_compare_ends_with_its_table_and_how_to_get_a_page(file: Path, fedfi) -> None:
    code, _, err = fedfi("compare", file, "--algorithms", "fedavg", "--out", "my runs", "--rounds", "1")
    assert code == 0
    assert "rounds in all 1/1  fedavg seed 0: " in err
    assert err.splitlines()[-1] == "table: my runs/table.md; all runs as a page: fedfi report 'my runs'"
    assert fedfi("compare", file, "--algorithms", "fedavg", "--out", "c", "--rounds", "1", "-q") == (0, "", "")
