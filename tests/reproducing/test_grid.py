"""A grid of experiments: what is tried, what is chosen, what is run, and what a run came to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.reproducing.files import RATINGS, grid

from fedfi.errors import InputError
from fedfi.reproducing.grid import Cell, Grid, digest, final_of, said
from fedfi.reproducing.tuning import best_of


def test_choices_are_every_combination_and_rates_may_be_a_methods_own(tmp_path: Path) -> None:
    found = grid(tmp_path)
    assert found.choices("fedrkg") == [
        {"train.learning_rate": 0.1, "algorithm.interval": 1, "algorithm.beta": 0.5},
        {"train.learning_rate": 0.1, "algorithm.interval": 2, "algorithm.beta": 0.5},
    ]
    assert found.choices("mf") == [0.01, 0.03]
    assert found.choices("popularity") == [0.1]
    cell = Cell("fedrkg", ("leaky",), 1)
    tables = found.settings(cell, found.choices("fedrkg")[1], 2)
    assert tables["algorithm"] == {"name": "fedrkg", "interval": 2, "beta": 0.5}
    assert (tables["seed"], tables["rounds"], tables["data"]["negatives"]) == (1, 2, "exclude_all")
    assert found.settings(Cell("popularity", ("any",), 0), 0.1, 2)["rounds"] == 1


def test_a_method_may_differ_at_a_scale(tmp_path: Path) -> None:
    small, paper = grid(tmp_path), grid(tmp_path, scale="paper")
    cell = Cell("mf", ("honest",), 0)
    assert small.settings(cell, 0.01)["train"] == {"batch_size": 64, "optimizer": "adam", "learning_rate": 0.01}
    assert paper.settings(cell, 0.5)["train"] == {"batch_size": 1024, "optimizer": "adam", "learning_rate": 0.5}
    assert (small.choices("mf"), paper.choices("mf")) == ([0.01, 0.03], [0.5])
    assert (small.tuning_rounds, paper.tuning_rounds) == (2, None)


def test_a_scale_may_leave_more_to_tuning(tmp_path: Path) -> None:
    text = RATINGS.replace("rounds = 60", 'rounds = 60\ntune = { "train.epochs" = [1, 2] }')
    found = grid(tmp_path, text, "paper")
    assert found.choices("popularity") == [{"train.learning_rate": 0.1, "train.epochs": e} for e in (1, 2)]
    assert len(found.choices("fedrkg")) == 4


def test_cells_leave_out_what_a_method_skips(tmp_path: Path) -> None:
    names = [cell.name for cell in grid(tmp_path).cells()]
    assert names == [
        "honest-fedrkg-0", "honest-mf-0", "any-popularity-0", "leaky-fedrkg-0",
        "honest-fedrkg-1", "any-popularity-1", "leaky-fedrkg-1",
    ]  # fmt: skip
    assert [cell.name for cell in grid(tmp_path).cells(only=["mf"])] == ["honest-mf-0"]


def test_seeds_may_be_others_than_the_files(tmp_path: Path) -> None:
    found = grid(tmp_path, seeds=(1, 7))
    assert {cell.seed for cell in found.cells()} == {1, 7}
    assert (found.tuning_seed, found.known_seeds) == (0, [0, 1, 7])


def test_the_best_choice_is_the_largest_number_and_of_losses_the_smallest(tmp_path: Path) -> None:
    found = grid(tmp_path)
    first, second = map(said, found.choices("fedrkg"))

    def interval(grid_: Grid, **row: float) -> int:
        choice = best_of(grid_, "fedrkg", {first: row["first"], second: row["second"]})
        assert isinstance(choice, dict)
        return choice["algorithm.interval"]

    assert interval(found, first=0.2, second=0.1) == 1
    assert interval(found, first=math.nan, second=0.1) == 2
    assert interval(found, first=0.2, second=0.2) == 1  # the first of equals
    losses = grid(tmp_path, RATINGS.replace('metric = "validation/hr@10"', 'metric = "validation/loss"'))
    assert interval(losses, first=0.2, second=0.1) == 2


def test_a_run_came_to_its_best_round_where_one_is_chosen() -> None:
    curves = {"ranking/hr@10": [[2, 0.1], [4, 0.5], [6, 0.3]]}
    assert final_of({"curves": curves, "best": 4}, "ranking/hr@10", 2) == [0.5]
    assert final_of({"curves": curves, "best": None}, "ranking/hr@10", 2) == [0.5, 0.3]
    assert final_of({"curves": curves}, "ranking/hr@10", 1) == [0.3]
    totals = {"curves": {"bytes/total": [[1, 10.0], [2, 30.0]]}, "best": None}
    assert final_of(totals, "bytes/total", 2) == [30.0]
    assert final_of(totals | {"best": 1}, "bytes/total", 2) == [10.0]


def test_a_file_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text(RATINGS)
    own = 'extends = "g.toml"\nseeds = [5]\n[scale.small]\nrounds = 3\n[method.mf]\nalgorithm = { name = "mf" }\n'
    (tmp_path / "own.toml").write_text(own)
    found = Grid(tmp_path / "own.toml")
    assert [cell.name for cell in found.cells()] == ["honest-mf-5", "leaky-mf-5"]
    assert found.settings(Cell("mf", ("leaky",), 5), 0.1)["rounds"] == 3
    assert found.tuning_rounds == 2
    (tmp_path / "own.toml").write_text('extends = "own.toml"\n')
    with pytest.raises(InputError, match="the file extends itself"):
        Grid(tmp_path / "own.toml")


def test_a_file_may_extend_one_of_fedfis_own(tmp_path: Path) -> None:
    text = 'extends = "oneshot-cifar10.toml"\n[axis.alpha."0.2"]\n[method.average]\nalgorithm = { name = "average" }\n'
    (tmp_path / "own.toml").write_text(text)
    found = Grid(tmp_path / "own.toml")
    assert found.paper is not None
    assert (found.paper.name, found.paper.also) == ("", []), "a name belongs to one file"
    assert found.paper.figure("global/accuracy", "average", {"alpha": "0.2"}) == ("34.0 ± 0.8", "Table 1")
    assert {method for figure in found.paper.figures for method in figure.values} == {"average"}


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": {"c": 2.0, "d": "e"}}) == digest({"b": {"d": "e", "c": 2.0}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.0})


WRONG = [
    ("seeds = [0, 1]", "seeds = []", "seeds = []: must be of at least 1 entries"),
    ("seeds = [0, 1]", "seed = [0, 1]", "seed: unknown key; did you mean 'seeds'?"),
    ("rates = [0.1]\n", 'rates = ["a"]\n', "must be a number"),
    ("rates = [0.1]\n", "", "rates: is missing"),
    ('metric = "validation/hr@10"', 'kind = "folowers"', "(nearest valid: \"followers\")"),
    ("tuning_rounds = 2", "tuning_rounds = 0", "scale.small.tuning_rounds = 0: must be at least 1"),
    ("[axis.negatives.honest]", '[axis.negatives."a b"]', "only letters, digits and . _ + - may be in it"),
    ("scale.paper.rates", "scale.pape.rates", "method.mf.scale: unknown scale 'pape'; did you mean 'paper'?"),
    ('ignores = ["negatives"]', 'ignores = ["negative"]', "method.popularity: unknown axis 'negative'; did you mean"),
    ('["leaky"]', '["leak"]', "method.mf.skip: unknown value of negatives 'leak'; did you mean 'leaky'?"),
    ('skip = { negatives = ["leaky"] }', "skip = 3", "method.mf.skip = 3: must be a table"),
    ("[method.popularity]", "[paper]\nname = 3\n[method.popularity]", "paper.name = 3: must be a text in quotes"),
    ("[base.data]", 'traffic = { number = "x", methods = ["m"] }\n[base.data]', "traffic.methods: unknown method 'm'"),
    ("[scale.small]", "[scales.small]", "scales: unknown key; did you mean 'scale'?"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "text"), WRONG)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in RATINGS
    with pytest.raises(InputError) as error:
        grid(tmp_path, RATINGS.replace(old, new))
    assert text in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "g.toml"))


def test_an_unknown_scale_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown scale 'smal'; did you mean 'small'"):
        grid(tmp_path, scale="smal")


def test_two_runs_may_not_have_one_name(tmp_path: Path) -> None:
    text = RATINGS.replace("[axis.negatives.leaky]", "[axis.negatives.honest-x]").replace('["leaky"]', "[]")
    text += '[method.x-mf]\nalgorithm = { name = "mf" }\n'
    with pytest.raises(InputError, match="two runs would be called 'honest-x-mf-0'"):
        grid(tmp_path, text)


def test_an_experiment_that_is_not_valid_names_the_run(tmp_path: Path) -> None:
    found = grid(tmp_path, RATINGS.replace('name = "mf"', 'name = "fm"'))
    with pytest.raises(InputError, match=r"g\.toml \(honest-mf-0\): algorithm\.name = \"fm\": unknown algorithm 'fm'"):
        found.settings(Cell("mf", ("honest",), 0), 0.01)
    found = grid(tmp_path, RATINGS.replace("batch_size = 64", "batch_sise = 64"))
    cell = Cell("mf", ("honest",), 0)
    with pytest.raises(InputError, match=r"g\.toml \(honest-mf-0\): train\.batch_sise: unknown key; did you mean"):
        found.experiment(cell, found.settings(cell, 0.01))


def test_unknown_methods_are_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--only: .*unknown method 'fedrk'; did you mean 'fedrkg'"):
        grid(tmp_path).check_labels(["mf", "fedrk"])
