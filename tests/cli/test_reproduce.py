from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.reproducing.files import DIGITS


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("g.toml").write_text(DIGITS.replace("rates = [0.1, 0.5]", "rates = [0.1]"))
    return Path("g.toml")


def test_without_a_name_all_are_listed(fedfi) -> None:
    code, out, _ = fedfi("reproduce")
    assert code == 0
    assert "FedFiOT, arXiv 2611.06783\n" in out
    assert "  fedfiot-table5 " in out
    assert "Table 5 on CIFAR-10, alpha = 0.1; about 15 minutes (also fedfiot-independent)" in out
    rows = {row["name"]: row for row in json.loads(fedfi("reproduce", "--json")[1])}
    assert rows["fedfiot-table1"]["time"] == "about an hour"
    assert rows["fedfiot-table1"]["figures"] > 25
    assert {"small", "paper"} <= set(rows["fedfibos-agnews"]["scales"])


def test_a_grid_of_ones_own_is_run_and_goes_on(grid: Path, fedfi) -> None:
    code, out, err = fedfi("reproduce", grid, "--only", "plain", "--seeds", "0")
    assert code == 0
    assert out.strip() == Path("runs/g-small/table.md").read_text().strip()
    assert "g.toml at scale small, in runs/g-small" in err
    assert "\n2 runs\n" in err
    assert {p.name for p in Path("runs/g-small").iterdir()} == {"runs", "table.md", "results.json", "curves.csv"}
    code, out, err = fedfi("reproduce", grid, "--only", "plain", "--seeds", "0")
    assert (code, "\n0 runs\n" in err) == (0, True)
    code, out, err = fedfi("reproduce", grid, "--scale", "paper", "--out", "runs/g-small")
    assert code == 2
    assert "is a run with rounds = 2, now it is rounds = 3; choose another --out" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["fedfiot-tabel1"], "unknown grid 'fedfiot-tabel1'; did you mean 'fedfiot-table1'"),
        (["h.toml"], "h.toml: no such file"),
        (["g.toml", "--scale", "papre"], "unknown scale 'papre'; did you mean 'paper'?"),
        (["g.toml", "--seeds", "a"], "--seeds a: 'a' is not a whole number from 0"),
        (["g.toml", "--only", "plane"], "unknown method 'plane'; did you mean 'plain'?"),
        (["g.toml", "--only", ","], "--only ,: names no method"),
        (["g.toml", "--out", "g.toml"], "--out g.toml: g.toml is a file, no directory"),
        (["g.toml", "--out", "single"], "--out single: is the directory of a single run"),
        (["g.toml", "--out", "compared"], "--out compared: is the directory of a comparison"),
    ],
)
def test_what_is_wrong_is_one_line(grid: Path, fedfi, arguments: list[str], text: str) -> None:
    for folder, file in (("single", "run.toml"), ("compared", "table.csv")):
        Path(folder).mkdir()
        (Path(folder) / file).touch()
    code, _, err = fedfi("reproduce", *arguments)
    assert code == 2
    assert text in err
    assert len(err.strip().splitlines()) == 1
