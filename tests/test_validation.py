"""What is wrong with a validated dataclass made in Python is one line, as in files."""

from __future__ import annotations

import dataclasses

import pytest

import fedfi


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
    with pytest.raises(fedfi.InputError, match=r"^FedAvg: give every option by name, such as participation = 0\.5$"):
        fedfi.FedAvg(0.5)
    with pytest.raises(fedfi.InputError, match="Training: steps = 0: must be at least 1"):
        dataclasses.replace(fedfi.Training(), steps=0)
