"""Who follows the crowd, and what a round did to whom."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.recsys import small
from tests.reproducing.files import grid

from fedfi.errors import InputError
from fedfi.reproducing import followers
from fedfi.reproducing.jobs import missing
from fedfi.reproducing.running import Options, reproduce

GRID = """
kind = "followers"
seeds = [0, 1]
rates = [0.1]
shown = { "NDCG@20" = "ndcg@20" }
[base]
rounds = 6
[base.data]
name = "synthetic_ratings"
[base.model]
name = "item_table"
dimension = 4
[base.train]
batch_size = 64
[base.algorithm]
name = "fedrkg"
interval = 2
[scale.small]
[method.adaptive]
algorithm = { name = "fedrkg" }
[method.alone]
algorithm = { name = "fedrkg", beta = 1.0, gate = false }
"""


def test_taste_is_the_correlation_of_ones_items_with_their_popularity() -> None:
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


def test_an_exchange_is_judged_by_hand() -> None:
    """Users a, b: training brings .1 and 0, the mean then +.2 and -.1; so it rose for one of two and fell for one."""
    values = {9: {"a": 0.1, "b": 0.5}, 10: {"a": 0.2, "b": 0.5}, 11: {"a": 0.4, "b": 0.4}}
    values = {r: {u: {"m": v} for u, v in found.items()} for r, found in values.items()}
    (row,) = followers.exchanges(values, {"both": ["a", "b"]}, "m", 10)
    assert (row["round"], row["users"], row["rose"], row["fell"]) == (10, 2, 0.5, 0.5)
    assert row["before"] == pytest.approx(0.35)
    assert row["after"] == pytest.approx(0.40)
    assert row["change"] == pytest.approx(0.05)
    assert row["change_by_training"] == pytest.approx(0.05)


def test_a_number_that_users_do_not_have_is_named() -> None:
    values = {r: {"a": {"ndcg@20": 0.5}} for r in (9, 10, 11)}
    with pytest.raises(InputError, match="unknown number of a user 'ndcg@2'; did you mean 'ndcg@20'"):
        followers.exchanges(values, {"all": ["a"]}, "ndcg@2", 10)


@pytest.mark.slow  # starts processes
def test_the_study_runs_and_keeps_what_is_done(tmp_path: Path) -> None:
    found = grid(tmp_path, GRID)
    table = reproduce(found, tmp_path, Options(quiet=True))
    assert missing(found, tmp_path) == []
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 2 * 3
    alone = [row for row in rows if row["method"] == "alone"]
    assert all(row["seeds"] == 2 for row in rows)
    assert {row["group"] for row in alone} == {"distinct", "followers", "everyone"}
    run = json.loads((tmp_path / "runs/alone-0.json").read_text())
    assert {row["round"] for row in run["exchanges"]} == {2, 4}
    assert table is not None
    assert table.count("| alone | followers | 2 |") == 1
    assert "### NDCG@20 in %, right before and after a mean enters" in table
