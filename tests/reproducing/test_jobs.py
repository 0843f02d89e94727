"""What is there is kept, what is of other settings is not overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.reproducing.files import RATINGS, grid, pretend

from fedfi.errors import InputError
from fedfi.reproducing.grid import Cell, Grid, digest
from fedfi.reproducing.jobs import choice_of, chosen, missing, read_run_file
from fedfi.reproducing.tables import table
from fedfi.reproducing.tuning import Tuning

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results/submodel-cifar10"
BEST = {
    "fedrkg/honest": {"train.learning_rate": 0.1, "algorithm.interval": 2, "algorithm.beta": 0.5},
    "mf/honest": 0.03,
}


def tuned(folder: Path, **changes: object) -> Grid:
    """A grid whose choices are there, for honest negatives alone."""
    (folder / "tuning.json").write_text(json.dumps({"rounds": 2, "validation_hr@10": {}, "best": BEST} | changes))
    return grid(folder)


def test_runs_that_were_made_before_are_recognised() -> None:
    """Digests by hashlib.blake2b of the files' settings, taken when this was written."""
    known = {"dirichlet-NU-fedbrb-0": "99c95ca0cc62fe01", "pathological-U-fedfibos-all-round-0": "31f398469273c68b"}
    found = Grid(ROOT / "experiments/submodel-cifar10.toml", seeds=(0,))
    tables = {c.name: found.settings(c, choice_of(chosen(found, RUNS), c) or 0.0) for c in found.cells()}
    for name, expected in known.items():
        assert digest(read_run_file(RUNS / "runs" / f"{name}.json")["settings"]) == expected
        assert digest(tables[name]) == expected
    assert len(tables) == 28
    assert missing(found, RUNS) == []
    assert Tuning(found, RUNS).trials() == []


def test_a_table_of_runs_that_were_made_before_has_their_numbers() -> None:
    found = Grid(ROOT / "experiments/submodel-cifar10.toml")
    rows = [line for line in (RUNS / "table.md").read_text().splitlines() if line.startswith("| fed")]
    now = table(found, RUNS).splitlines()
    assert rows
    assert set(rows) <= set(now)
    assert "The paper's figures: none." in now[2]


def test_choices_of_variants_that_were_made_before_are_recognised() -> None:
    found = Grid(ROOT / "experiments/fedfibos-variants.toml")
    folder = ROOT / "results/fedfibos-variants"
    assert Tuning(found, folder).trials() == []
    best = json.loads((folder / "tuning.json").read_text())["best"]
    assert chosen(found, folder) == best


def test_what_is_missing_is_made_and_what_is_there_is_kept(tmp_path: Path) -> None:
    found = tuned(tmp_path)
    only = ["mf", "popularity"]
    assert [job.cell.name for job in missing(found, tmp_path, only)] == [
        "honest-mf-0", "any-popularity-0", "any-popularity-1",
    ]  # fmt: skip
    pretend(found, tmp_path, Cell("popularity", ("any",), 0), 0.1)
    assert [job.cell.name for job in missing(found, tmp_path, only)] == ["honest-mf-0", "any-popularity-1"]


def test_a_run_of_another_choice_is_made_again(tmp_path: Path) -> None:
    found = tuned(tmp_path)
    pretend(found, tmp_path, Cell("mf", ("honest",), 0), 0.01)
    assert [job.cell.name for job in missing(found, tmp_path, ["mf"])] == ["honest-mf-0"]
    pretend(found, tmp_path, Cell("mf", ("honest",), 0), 0.03)
    assert missing(found, tmp_path, ["mf"]) == []


def test_a_run_of_other_settings_is_refused_not_overwritten(tmp_path: Path) -> None:
    found = tuned(tmp_path)
    pretend(grid(tmp_path, scale="paper"), tmp_path, Cell("mf", ("honest",), 0), 0.03)
    with pytest.raises(InputError, match=r"honest-mf-0\.json: is a run with .* now it is .*choose another --out"):
        missing(found, tmp_path, ["mf"])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    found = tuned(tmp_path)
    pretend(found, tmp_path, Cell("mf", ("honest",), 0), 0.03)
    path = tmp_path / "runs/honest-mf-0.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(InputError, match=r"honest-mf-0\.json: is no file of a run .*; remove it"):
        missing(found, tmp_path, ["mf"])
    (tmp_path / "tuning.json").write_text("[]")
    with pytest.raises(InputError, match=r"tuning\.json: is no file of choices"):
        missing(found, tmp_path, ["mf"])


def test_choices_of_another_length_of_tuning_are_refused(tmp_path: Path) -> None:
    found = tuned(tmp_path, rounds=5)
    with pytest.raises(InputError, match=r"was made with tuning_rounds = 5, at scale small it is 2"):
        chosen(found, tmp_path)


def test_what_was_not_tuned_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no choice for leaky-fedrkg-0; tune first"):
        missing(tuned(tmp_path), tmp_path)


def test_tuning_tries_what_is_open_once(tmp_path: Path) -> None:
    found = grid(tmp_path)
    trials = Tuning(found, tmp_path).trials()
    assert [(t.key, t.experiment.settings.rounds) for t in trials] == [
        ("fedrkg/honest", 2), ("fedrkg/honest", 2), ("mf/honest", 2), ("mf/honest", 2),
        ("fedrkg/leaky", 2), ("fedrkg/leaky", 2),
    ]  # fmt: skip
    tuning = Tuning(found, tmp_path)
    tuning.keep(trials[0], 0.3)
    tuning.keep(trials[1], 0.1)
    assert [t.key for t in Tuning(found, tmp_path).trials(["fedrkg"])] == ["fedrkg/leaky", "fedrkg/leaky"]
    kept = json.loads((tmp_path / "tuning.json").read_text())
    assert kept["best"] == {"fedrkg/honest": trials[0].choice}
    assert kept["rounds"] == 2
    assert tuning.doubts() == []  # two values, each at an end


def test_equals_and_ends_of_what_was_tried_are_told(tmp_path: Path) -> None:
    tuning = Tuning(grid(tmp_path, RATINGS.replace('interval" = [1, 2]', 'interval" = [1, 2, 4]')), tmp_path)
    trials = [t for t in tuning.trials(["fedrkg"]) if t.key == "fedrkg/honest"]
    for trial, value in zip(trials, (0.3, 0.3, 0.1), strict=True):
        tuning.keep(trial, value)
    equal, end = tuning.doubts(["fedrkg"])
    assert equal.startswith("fedrkg/honest: ")
    assert " was taken, the first of equals; so good are " in equal
    assert end == "fedrkg/honest: interval 1 is at an end of what was tried; widen it"


def test_one_run_of_each_setting_goes_first_where_training_is_shared(tmp_path: Path) -> None:
    text = 'extends = "oneshot-cifar10-resnet.toml"\nseeds = [0]\n'
    found = grid(tmp_path, text)
    names = [job.cell.name for job in missing(found, tmp_path, ["ensemble", "average"])]
    assert names == ["group-ensemble-0", "batch-ensemble-0", "group-average-0", "batch-average-0"]
