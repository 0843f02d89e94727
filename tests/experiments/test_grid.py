"""A grid of experiments: what is tried, what is chosen, what is run, and what a run came to."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GRID = """
seeds = [0, 1]
rates = [0.1]
metric = "validation/hr@10"
shown = { "HR@10" = "ranking/hr@10" }
[base.data]
name = "synthetic_ratings"
[base.model]
name = "item_table"
dimension = 4
[base.train]
batch_size = 64
[base.evaluate]
every = 1
best = "validation/hr@10"
patience = 2
[scale.small]
rounds = 6
tuning_rounds = 2
[axis.negatives.honest]
data = { negatives = "exclude_train" }
[axis.negatives.leaky]
data = { negatives = "exclude_all" }
[method.fedrkg]
algorithm = { name = "fedrkg" }
tune = { "algorithm.interval" = [1, 2], "algorithm.beta" = [0.5] }
[method.mf]
rates = [0.01, 0.03]
seeds = [0]
skip = { negatives = ["leaky"] }
algorithm = { name = "mf" }
train = { optimizer = "adam" }
[method.popularity]
ignores = ["negatives"]
rounds = 1
algorithm = { name = "popularity" }
"""


@pytest.fixture(scope="module")
def grid():
    spec = importlib.util.spec_from_file_location("grid", ROOT / "experiments/grid.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["grid"] = module  # functions of a worker are found by name
    spec.loader.exec_module(module)
    return module


def at(grid, tmp_path, scale="small"):
    (tmp_path / "g.toml").write_text(GRID)
    return grid.Grid(tmp_path / "g.toml", scale)


def test_choices_are_every_combination_and_rates_may_be_a_methods_own(grid, tmp_path):
    found = at(grid, tmp_path)
    assert found.choices("fedrkg") == [
        {"train.learning_rate": 0.1, "algorithm.interval": 1, "algorithm.beta": 0.5},
        {"train.learning_rate": 0.1, "algorithm.interval": 2, "algorithm.beta": 0.5},
    ]
    assert found.choices("mf") == [0.01, 0.03]
    assert found.choices("popularity") == [0.1]
    cell = grid.Cell("fedrkg", ("leaky",), 1)
    tables = found.settings(cell, found.choices("fedrkg")[1], 2)
    assert tables["algorithm"] == {"name": "fedrkg", "interval": 2, "beta": 0.5}
    assert (tables["seed"], tables["rounds"], tables["data"]["negatives"]) == (1, 2, "exclude_all")
    assert found.settings(grid.Cell("popularity", ("any",), 0), 0.1, 2)["rounds"] == 1


def test_cells_leave_out_what_a_method_skips(grid, tmp_path):
    names = [cell.name for cell in at(grid, tmp_path).cells()]
    assert names == [
        "honest-fedrkg-0", "honest-mf-0", "any-popularity-0", "leaky-fedrkg-0",
        "honest-fedrkg-1", "any-popularity-1", "leaky-fedrkg-1",
    ]  # fmt: skip


def test_the_best_choice_is_the_largest_number_and_of_losses_the_smallest(grid, tmp_path):
    found = at(grid, tmp_path)
    first, second = map(grid.said, found.choices("fedrkg"))
    assert grid.best_of(found, "fedrkg", {first: 0.2, second: 0.1})["algorithm.interval"] == 1
    assert grid.best_of(found, "fedrkg", {first: math.nan, second: 0.1})["algorithm.interval"] == 2
    found.metric = "validation/loss"
    assert grid.best_of(found, "fedrkg", {first: 0.2, second: 0.1})["algorithm.interval"] == 2


def test_a_run_came_to_its_best_round_where_one_is_chosen(grid):
    curves = {"ranking/hr@10": [[2, 0.1], [4, 0.5], [6, 0.3]]}
    assert grid.final({"curves": curves, "best": 4}, "ranking/hr@10", 2) == [0.5]
    assert grid.final({"curves": curves, "best": None}, "ranking/hr@10", 2) == [0.5, 0.3]
    assert grid.final({"curves": curves}, "ranking/hr@10", 1) == [0.3]


@pytest.mark.slow
def test_a_grid_is_tuned_run_and_goes_on(grid, tmp_path, capsys):
    found = at(grid, tmp_path)
    grid.tune(found, tmp_path, 1, None)
    tuned = json.loads((tmp_path / "tuning.json").read_text())
    assert sorted(tuned["best"]) == ["fedrkg/honest", "fedrkg/leaky", "mf/honest"]
    assert sorted(tuned["validation_hr@10"]["mf/honest"]) == ["0.01", "0.03"]
    grid.run_all(found, tmp_path, 1, None, until=0.0)  # the first seed is always run
    assert {p.stem[-1] for p in (tmp_path / "runs").iterdir()} == {"0"}
    grid.run_all(found, tmp_path, 1, None, until=math.inf)
    assert len(list((tmp_path / "runs").iterdir())) == 7
    capsys.readouterr()
    grid.tune(found, tmp_path, 1, None)
    grid.run_all(found, tmp_path, 1, None, until=math.inf)
    assert capsys.readouterr().out == "0 runs\n"
    grid.collect(found, tmp_path, 2)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 7
    fedrkg = next(row for row in rows if row["method"] == "fedrkg")
    assert {"best", "ranking/hr@10", "bytes/total"} <= fedrkg.keys()
    table = grid.table(found, tmp_path, 2)
    assert "| fedrkg | learning_rate 0.1, interval" in table
    assert table.count("| popularity |") == 2
