"""What is wrong with a validated dataclass made in Python is one line, as in files."""

from __future__ import annotations

import dataclasses
import math
import types

import numpy as np
import pytest

import fedfi
from fedfi.errors import nearest

NAN = math.nan


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (fedfi.Training, {"lr": 0.1}, "Training: lr: unknown key; did you mean 'learning_rate'?"),
        (fedfi.Training, {"batch": 1}, "Training: batch: unknown key; did you mean 'batch_size'?"),
        (fedfi.Training, {"epoch": 1}, "Training: epoch: unknown key; did you mean 'epochs'?"),
        (fedfi.Training, {"batch_size": 0}, "Training: batch_size = 0: must be at least 1 (nearest valid: 1)"),
        (fedfi.FedAvg, {"participation": 2}, "FedAvg: participation = 2: must be at most 1 (nearest valid: 1)"),
        (fedfi.FedProx, {"mu": 1}, "FedProx: mu: unknown key; did you mean 'proximal'?"),
        (fedfi.FedFIbOS, {"capacity": {"1.0": 1.0}}, "FedFIbOS: capacity: unknown key; did you mean 'capacities'?"),
        (fedfi.Evaluate, {"every": 0}, "Evaluate: every = 0: must be at least 1 (nearest valid: 1)"),
    ],
)
def test_one_line(kind: type, options: dict, text: str) -> None:
    with pytest.raises(fedfi.InputError) as caught:
        kind(**options)
    assert str(caught.value) == text


def test_options_go_by_name() -> None:
    with pytest.raises(fedfi.InputError, match=r"^FedAvg: takes keyword arguments only, such as participation = 0\.5$"):
        fedfi.FedAvg(0.5)
    with pytest.raises(fedfi.InputError, match=r"^FedFIbOS: takes keyword arguments only, such as"):
        fedfi.FedFIbOS(0.5)
    with pytest.raises(fedfi.InputError, match="Training: steps = 0: must be at least 1"):
        dataclasses.replace(fedfi.Training(), steps=0)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (fedfi.FedFIbOS, {"capacities": {NAN: 0.5, 1.0: 0.5}}, "capacities: the key nan: is not a number; must be"),
        (fedfi.FedFIbOS, {"capacities": {0.5: NAN, 1.0: 0.5}}, 'capacities."0.5" = nan: is not a number; must be'),
        (fedfi.FedFIbOS, {"capacities": {"nan": 0.5, 1.0: 0.5}}, "capacities.nan = nan: the key is not a number"),
        (fedfi.FedFIbOS, {"participation": NAN}, "participation = nan: is not a number"),
        (fedfi.FedFIbOS, {"server_learning_rate": math.inf}, "server_learning_rate = inf: must be a finite number"),
        (fedfi.FedFIbOS, {"threshold_factor": "yes"}, "threshold_factor = 'yes': must be"),
        (fedfi.FedFIbOS, {"capacities": {True: 1.0}}, "capacities: the key True must be a number or a text"),
        (
            fedfi.FedFIbOS,
            {"capacities": {0.5: "1.0"}},
            "capacities.\"0.5\" = '1.0': must be a number (nearest valid: 1.0)",
        ),
        (
            fedfi.FedFIbOS,
            {"capacities": [0.5]},
            "capacities = [0.5]: must be a dict: ratio of the model -> share of clients",
        ),
        (fedfi.Evaluate, {"local": 1}, "local = 1: must be True or False"),
        (fedfi.Training, {"steps": True}, "steps = True: must be a whole number"),
        (fedfi.Training, {"steps": "nan"}, "steps = 'nan': must be a whole number"),
    ],
)
def test_options_in_python_are_as_strict_as_in_files(kind: type, options: dict, text: str) -> None:
    with pytest.raises(fedfi.InputError) as caught:
        kind(**options)
    assert str(caught.value).startswith(f"{kind.__name__}: {text}")


def test_what_python_has_several_kinds_of() -> None:
    assert fedfi.FedFIbOS(capacities={"0.5": 1, 1: 0}).capacities == {0.5: 1.0, 1.0: 0.0}
    assert fedfi.FedFIbOS(capacities=types.MappingProxyType({0.5: 1.0})).capacities == {0.5: 1.0}
    made = fedfi.Training(learning_rate=1, steps=np.int64(3), betas=[0.5, np.float32(0.25)])
    assert (made.learning_rate, made.steps, made.betas) == (1.0, 3, (0.5, 0.25))


def test_numbers_are_near_by_value() -> None:
    levels = ["0.1", "0.25", "0.4", "1"]
    near = {given: nearest(given, levels) for given in ("0.3", "-1", "0", "40%", "1e9", "nan", "inf", "all")}
    assert near == {
        "0.3": ["0.25"],
        "-1": ["0.1"],
        "0": ["0.1"],
        "40%": ["0.4"],
        "1e9": ["1"],
        "nan": [],
        "inf": [],
        "all": [],
    }
    assert nearest("0.3", levels, 2) == ["0.25", "0.4"]
    with pytest.raises(fedfi.InputError, match=r"fisher_bits = 16: must be 32 or 8 \(nearest valid: 8\)"):
        fedfi.FedFIbOS(fisher_bits=16)
    with pytest.raises(fedfi.InputError, match=r"fisher_bits = '30': must be 32 or 8 \(nearest valid: 32\)"):
        fedfi.FedFIbOS(fisher_bits="30")
