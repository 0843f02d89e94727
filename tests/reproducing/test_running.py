"""A grid is tuned, run, and goes on where it was."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from tests.reproducing.files import DIGITS, RATINGS, grid

from fedfi.errors import InputError, RunError
from fedfi.reproducing.jobs import missing
from fedfi.reproducing.running import Options, reproduce

QUIET = Options(quiet=True)


def test_a_grid_is_tuned_run_and_set_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = grid(tmp_path, DIGITS, seeds=(0,))
    assert reproduce(found, tmp_path, QUIET, tune_only=True) is None
    tuned = json.loads((tmp_path / "tuning.json").read_text())
    assert sorted(tuned["validation_accuracy"]) == sorted(tuned["best"]) == ["plain/dirichlet", "plain/iid"]
    assert sorted(tuned["validation_accuracy"]["plain/iid"]) == ["0.1", "0.5"]
    assert list((tmp_path / "runs").iterdir()) == []
    table = reproduce(found, tmp_path, Options(workers=2))
    assert capsys.readouterr().err.startswith("4 runs\n")
    assert table == (tmp_path / "table.md").read_text()
    assert "| 91.5 ± 0.4 |" in table
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [(row["setting"], row["method"], row["rounds"]) for row in rows] == [
        (["iid"], "plain", 2), (["iid"], "near", 2), (["dirichlet"], "plain", 2), (["dirichlet"], "near", 2),
    ]  # fmt: skip
    curve = [
        row for row in csv.DictReader((tmp_path / "curves.csv").read_text().splitlines())
        if (row["skew"], row["method"], row["metric"]) == ("iid", "near", "global/accuracy")
    ]  # fmt: skip
    assert [row["round"] for row in curve] == ["1", "2"]
    assert float(curve[-1]["mean"]) == pytest.approx(rows[1]["global/accuracy"])

    before = {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    more = grid(tmp_path, DIGITS)  # both seeds of the file
    assert len(missing(more, tmp_path)) == 4
    reproduce(more, tmp_path, QUIET)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(list((tmp_path / "runs").iterdir())) == 8
    assert missing(more, tmp_path) == []


def test_a_run_that_fails_ends_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = DIGITS.replace("rates = [0.1, 0.5]", "rates = [0.1]") + "min_replies = 5\n"
    found = grid(tmp_path, text, seeds=(0,))
    with pytest.raises(RunError, match="2 runs failed, all others are done: iid-near-0, dirichlet-near-0"):
        reproduce(found, tmp_path, QUIET)
    assert "iid-near-0: " in capsys.readouterr().err
    assert {path.stem for path in (tmp_path / "runs").iterdir()} == {"iid-plain-0", "dirichlet-plain-0"}
    assert "| plain | 0.1 | 1 |" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_later_seeds_are_left_where_there_is_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = grid(tmp_path, 'traffic = { number = "ranking/ndcg@10" }' + RATINGS)
    reproduce(found, tmp_path, Options(minutes=0.0))  # the first seed is always run
    assert {p.stem[-1] for p in (tmp_path / "runs").iterdir()} == {"0"}
    assert "3 runs left for another time" in capsys.readouterr().err
    tuned = json.loads((tmp_path / "tuning.json").read_text())
    assert sorted(tuned["best"]) == ["fedrkg/honest", "fedrkg/leaky", "mf/honest"]
    table = reproduce(found, tmp_path, Options(minutes=math.inf))
    assert len(list((tmp_path / "runs").iterdir())) == 7
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 7
    fedrkg = next(row for row in rows if row["method"] == "fedrkg")
    assert {"best", "ranking/hr@10", "bytes/total"} <= fedrkg.keys()
    assert table is not None
    assert "| fedrkg | learning_rate 0.1, interval" in table
    assert table.count("| popularity |") == 2
    drawn = (tmp_path / "traffic.svg").read_text()
    assert all(f">{name}<" in drawn for name in ("fedrkg", "popularity", "honest", "leaky"))


def test_a_chart_that_cannot_be_drawn_is_told_before_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfi.linechart.find_spec", lambda name: None)
    found = grid(tmp_path, 'traffic = { number = "ranking/ndcg@10" }' + RATINGS)
    with pytest.raises(InputError, match=r"pip install 'fedfi\[plots\]'"):
        reproduce(found, tmp_path, QUIET)
    assert not (tmp_path / "runs").exists()


ONESHOT = """
seeds = [0]
rates = [0.1]
shared = true
predictions = true
shown = { accuracy = "global/accuracy" }
[base]
rounds = 1
[base.data]
name = "digits"
clients = 3
validation = 50
[base.model]
name = "mlp"
hidden = [4]
[base.train]
steps = 5
[base.evaluate]
local = false
levels = false
[scale.small]
[method.ensemble]
algorithm = { name = "ensemble" }
[method.average]
algorithm = { name = "average" }
"""


def test_merges_share_clients_models_and_are_compared_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where runs/trained is
    table = reproduce(grid(tmp_path, ONESHOT), tmp_path / "out", QUIET)
    assert len(list((tmp_path / "runs/trained").glob("*.safetensors"))) == 3
    ensemble, average = json.loads((tmp_path / "out/results.json").read_text())
    assert len(ensemble["clients"]) == len(average["agreement"]) == 3
    assert ensemble["clients"] == average["clients"]
    assert (len(average["classes"]), average["worst_class"]) == (10, min(average["classes"]))
    assert average["agreement_largest"] == max(average["agreement"])
    assert table is not None
    assert "| accuracy | worst class | agreement, highest | agreement, mean | MB down / up | s |" in table
