from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.tiny import small
from torch import nn

import fedfi
from fedfi.federation.divergence import Expected, divergence, short
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
    assert divergence(lines[:1], Expected(0.3)).startswith(
        "the training loss is 2.0000 after round 1, chance is 0.3000"
    )
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


def judged(*losses: float, accuracy: float = 0.25) -> list[dict[str, float]]:
    """Rounds of four classes, whose clients learn."""
    return [
        {"round": i + 1, "train/loss": 1.3 / (i + 1), "global/loss": loss, "global/accuracy": accuracy}
        for i, loss in enumerate(losses)
    ]


FOUR = math.log(4)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (judged(1.44, 5.34), True),
        (judged(1.44, 5.34, accuracy=0.3), False),  # more than a tenth above chance
        (judged(1.44, 2.7), False),  # not twice that of chance, 2.7726
        (judged(5.4, 5.34), False),  # not above its start
        (judged(5.34), False),  # judged once
        (judged(5.34, 1.2), False),  # over
    ],
)
def test_a_loss_above_its_start_at_the_accuracy_of_chance_is_told_at_the_end(lines, said) -> None:
    assert divergence(lines, Expected(FOUR)) == ""
    assert bool(divergence(lines, Expected(FOUR), ended=True)) == said
    assert divergence(lines, ended=True) == ""  # nobody knows what chance is


def test_advice_names_the_running_statistics_of_the_model() -> None:
    """Not where the training loss is astray, and beside the learning rate where both may be why."""
    known = Expected(FOUR, ["features.1", "features.4"])
    of_norms = "the running statistics of batch norms ('features.1', 'features.4') may be why: use group norm"
    for lines in (judged(1.44, 5.34), judged(1.44, 7.82, accuracy=0.58)):
        text = divergence(lines, known, ended=True)
        assert text.endswith(f"clients learn (training loss 0.6500), so that {of_norms}")
        assert "training diverges" not in text
        assert divergence(lines, Expected(FOUR), ended=True).endswith("try a smaller learning_rate")
    worse = judged(1.44, 7.82)
    worse[1]["train/loss"] = 1.4
    assert "training diverges; try a smaller learning_rate; the running statistics" in divergence(worse, known)
    worse[1]["train/loss"] = 7.0
    assert divergence(worse, known).endswith("training diverges; try a smaller learning_rate")


@fedfi.method
class Leaning(fedfi.Averaging):
    """Raises the logit of class 0 by 2.5 a round."""

    def train(self, client: fedfi.Client) -> fedfi.Trained:
        client.workbench.parameters()["bias"][0] += 2.5
        return fedfi.Trained(loss=1.0, steps=1, examples=len(client.data.train))


class Level(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def test_a_run_tells_it_once_at_its_end(tmp_path) -> None:
    """A third of the test examples is of class 0; after three rounds the loss is 2/3 * 7.5 + log(1 + 2 exp(-7.5))."""
    result = fedfi.run(Leaning(), dataclasses.replace(small(), model=Level), rounds=3, out=tmp_path / "a")
    assert result.metrics[-1]["global/loss"] == pytest.approx(5 + math.log1p(2 * math.exp(-7.5)), rel=1e-5)
    told = [event for event in read_lines(tmp_path / "a" / "events.jsonl") if event.get("key") == "divergence"]
    assert [event["round"] for event in told] == [3]
    assert told[0]["text"] == (
        "the global loss is 5.0011 after round 3, chance is 1.0986, and the accuracy 0.3333 is that of chance;"
        " try a smaller learning_rate"
    )
