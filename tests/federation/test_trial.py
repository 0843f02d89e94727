from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.tiny import small
from torch import nn

import fedfi
from fedfi.federation.divergence import divergence, short
from fedfi.federation.record import read_lines
from fedfi.federation.trial import try_out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"loss": nn.CrossEntropyLoss()}, r'the loss has shape \(\), .* \(2,\); give it reduction="none"'),
        ({"loss": lambda outputs, targets: 0.0}, "the loss has shape none, it is a float"),
        ({"loss": lambda outputs: outputs}, "the loss failed: TypeError"),
        ({"evaluation": lambda outputs, targets: {"top": outputs.mean()}}, r"the evaluation's 'top' has shape \(\)"),
        ({"model": lambda: nn.Linear(7, 3)}, r"the model on inputs \[2, 6\] failed: RuntimeError"),
        ({"model": lambda: 3}, "task.model made a int"),
        ({"model": lambda: nn.Linear(6, 2)}, r"the model makes \[2, 2\] of inputs \[2, 6\], expected logits \[2, 3\]"),
        ({"model": lambda: nn.LSTM(6, 3)}, r"the model makes tuple of inputs \[2, 6\], expected logits \[2, 3\]"),
    ],
)
def test_what_does_not_fit_is_found_before_the_first_round(change: dict, text: str) -> None:
    with pytest.raises(fedfi.InputError, match=text):
        fedfi.run(fedfi.FedAvg(), dataclasses.replace(small(), **change), rounds=1)


def test_no_line_of_torch_is_named() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(7, 3)

        def forward(self, inputs):
            return self.layer(inputs)

    for model, place in ((lambda: nn.Sequential(nn.Linear(7, 3)), ""), (Own, r" \(test_trial.py, line \d+\)")):
        with pytest.raises(fedfi.InputError, match=rf"failed: RuntimeError: .* \(2x6 and 7x3\){place}$") as caught:
            fedfi.run(fedfi.FedAvg(), dataclasses.replace(small(), model=model), rounds=1)
        assert "linear.py" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "noted"),
    [
        (lambda: nn.Linear(6, 3), []),
        (lambda: nn.Linear(6, 7), ["the model tells 7 classes apart, the data have 3: the others are never right"]),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), ["the model makes probabilities, rows that sum to"]),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1)), []),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Sigmoid()), []),
    ],
)
def test_odd_outputs_are_a_note_of_the_run(model, noted: list[str], tmp_path) -> None:
    task = dataclasses.replace(small(), model=model)
    fedfi.run(fedfi.FedAvg(), task, rounds=1, out=tmp_path / "a")
    told = [event["text"] for event in read_lines(tmp_path / "a" / "events.jsonl") if event["event"] == "warning"]
    assert [text.startswith(start) for text, start in zip(told, noted, strict=True)] == [True] * len(noted)


def test_a_loss_of_ones_own_may_take_other_outputs() -> None:
    def squared(outputs, targets):
        return (outputs[:, 0] - targets).square()

    def judged(outputs, targets):
        return {"loss": squared(outputs, targets)}

    task = dataclasses.replace(small(), model=lambda: nn.Linear(6, 1), loss=squared, evaluation=judged)
    assert try_out(task) == []


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
