"""The shipped examples run as they stand; the data's own traps are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import fedfi
from fedfi.experiment import load_experiment
from fedfi.federation.run import run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def folder(name: str) -> None:
    if not (Path(os.environ.get("FEDFI_DATA", "/none")) / name).is_dir():
        pytest.skip(f"FEDFI_DATA has no {name}")


@pytest.mark.parametrize("name", ["hospitals", "pneumonia"])
def test_examples_are_valid(name):
    assert load_experiment(EXAMPLES / f"{name}.toml").settings.algorithm["name"] == "fedfihe"


def test_four_hospitals_learn_encrypted():
    folder("heart_disease")
    pytest.importorskip("tenseal")
    experiment = load_experiment(EXAMPLES / "hospitals.toml")
    task = experiment.task()
    assert list(task.data.clients) == ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    result = run(experiment.algorithm(), task, rounds=2)
    assert result.failures == []
    assert result.metrics[-1]["packets/released"] > 0
    assert result.metrics[-1]["local/accuracy_mean"] > 0.6


def test_nobody_has_a_cholesterol_of_zero():
    folder("heart_disease")
    data, _ = fedfi.load("heart_disease")
    column = data.inputs[:, data.feature_names.index("chol")]
    assert not (column == 0).any()
    in_switzerland = torch.tensor([g == "Switzerland" for g in data.groups])
    assert torch.isnan(column[in_switzerland]).all()
