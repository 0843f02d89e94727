from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.tiny import small
from torch import nn

import fedfi
from fedfi.federation.divergence import divergence, short


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"loss": nn.CrossEntropyLoss()}, r'the loss has shape \(\), .* \(2,\); give it reduction="none"'),
        ({"loss": lambda outputs, targets: 0.0}, "the loss has shape none, it is a float"),
        ({"loss": lambda outputs: outputs}, "the loss failed: TypeError"),
        ({"evaluation": lambda outputs, targets: {"top": outputs.mean()}}, r"the evaluation's 'top' has shape \(\)"),
        ({"model": lambda: nn.Linear(7, 3)}, r"the model on inputs \[2, 6\] failed: RuntimeError"),
        ({"model": lambda: 3}, "task.model made a int"),
    ],
)
def test_what_does_not_fit_is_found_before_the_first_round(change: dict, text: str) -> None:
    with pytest.raises(fedfi.InputError, match=text):
        fedfi.run(fedfi.FedAvg(), dataclasses.replace(small(), **change), rounds=1)


def test_a_trial_moves_no_draw() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    fedfi.run(fedfi.FedAvg(), small(), rounds=1)
    assert torch.rand(1).equal(expected)


def test_divergence() -> None:
    lines = [{"round": i + 1, "train/loss": v} for i, v in enumerate([2.0, 1.0, 10.0, 10.1])]
    assert [bool(divergence(lines[:n])) for n in range(1, 5)] == [False, False, False, True]
    assert divergence(lines).startswith("the training loss is 10.1000 after round 4, it was 2.0000 after round 1")
    assert divergence([*lines, {"round": 5, "train/loss": float("nan")}]).startswith("the training loss is nan")
    assert divergence(lines[:1], chance=0.3).startswith("the training loss is 2.0000 after round 1, chance is 0.3000")
    assert divergence([*lines, {"round": 5}]) == ""
    assert divergence(lines).endswith("try a smaller learning_rate")
    private = {"round": 5, "train/loss": float("inf"), "privacy/noise": 50.0}
    assert "try less noise, a smaller clip or a larger epsilon of [algorithm.private]" in divergence([*lines, private])
    assert [short(v) for v in (0.12345, 99999.0, 3.9e18, -1e5, float("inf"))] == [
        "0.1235",
        "99999.0000",
        "3.9e18",
        "-1.0e5",
        "inf",
    ]
