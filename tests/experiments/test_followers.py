"""Who follows the crowd, and what a round did to whom."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.recsys import small

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def followers():
    spec = importlib.util.spec_from_file_location("followers", ROOT / "experiments/followers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_taste_is_the_correlation_of_ones_items_with_their_popularity(followers):
    data = small.ratings(users=9)
    found = followers.popularity_correlation(data)
    has = np.zeros((9, 30))
    for row, own in enumerate(data.train):
        has[row, own] = 1
    for row, user in enumerate(data.users):
        assert found[user] == pytest.approx(np.corrcoef(has[row], has.sum(0))[0, 1])
    groups = followers.groups_of(data)
    assert [len(groups[g]) for g in ("distinct", "followers", "everyone")] == [3, 3, 9]
    assert max(found[u] for u in groups["distinct"]) <= min(found[u] for u in groups["followers"])


def test_an_exchange_is_judged_by_hand(followers):
    """Users a, b: training brings .1 and 0, the mean then +.2 and -.1; so it rose for one of two and fell for one."""
    values = {9: {"a": 0.1, "b": 0.5}, 10: {"a": 0.2, "b": 0.5}, 11: {"a": 0.4, "b": 0.4}}
    values = {r: {u: {"m": v} for u, v in found.items()} for r, found in values.items()}
    (row,) = followers.exchanges(values, {"both": ["a", "b"]}, "m", 10)
    assert (row["round"], row["users"], row["rose"], row["fell"]) == (10, 2, 0.5, 0.5)
    assert row["before"] == pytest.approx(0.35)
    assert row["after"] == pytest.approx(0.40)
    assert row["change"] == pytest.approx(0.05)
    assert row["change_by_training"] == pytest.approx(0.05)


@pytest.mark.slow  # starts processes
def test_the_study_runs_and_keeps_what_is_done(tmp_path):
    command = [
        sys.executable, str(ROOT / "experiments/followers.py"), str(ROOT / "experiments/recsys-followers.toml"),
        "--seeds", "0,1", "--workers", "1", "-o", str(tmp_path),
    ]  # fmt: skip
    for key, value in {"data.name": "synthetic_ratings", "rounds": 6, "algorithm.interval": 2}.items():
        command += ["--set", f"{key}={value}"]
    first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (first.split("\n")[0], again.split("\n")[0]) == ("8 runs", "0 runs")
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 4 * 3
    alone = [row for row in rows if row["variant"] == "alone"]
    assert all(row["seeds"] == 2 for row in rows)
    assert {row["group"] for row in alone} == {"distinct", "followers", "everyone"}
