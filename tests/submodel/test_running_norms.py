"""Batch norms that keep running statistics, where clients train differing parts of a model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.tiny import small, with_buffers, with_validation

import fedfi
from fedfi.federation.record import read_lines

HALVES = {1.0: 0.5, 0.5: 0.5}
METHODS = [fedfi.FedFIbOS(participation=1.0, capacities=HALVES), fedfi.HeteroFL(participation=1.0, capacities=HALVES)]


def told(directory: Path) -> list[str]:
    events = [event["text"] for event in read_lines(directory / "events.jsonl") if event["event"] == "warning"]
    return [text for text in events if "running statistics" in text]


@pytest.mark.parametrize("method", METHODS, ids=["fedfibos", "heterofl"])
def test_statistics_are_those_of_the_servers_examples(method, tmp_path) -> None:
    """What is delivered has them, and what was judged is what is delivered."""
    task = with_validation(small(model=with_buffers))
    result = fedfi.run(method, task, rounds=2, out=tmp_path / "a")
    assert told(tmp_path / "a") == []
    module = with_buffers()
    module.load_state_dict(result.model)
    own = task.examples.validation
    inputs, _ = own.batch(torch.arange(len(own)))
    before = module[0](inputs)
    assert torch.allclose(module[1].running_mean, before.mean(0), atol=1e-6)
    assert torch.allclose(module[1].running_var, before.var(0), atol=1e-6)
    test = task.examples.test
    inputs, targets = test.batch(torch.arange(len(test)))
    module.eval()
    accuracy = float((module(inputs).argmax(1) == targets).float().mean())
    assert result.metrics[-1]["global/accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize("method", METHODS, ids=["fedfibos", "heterofl"])
def test_without_such_examples_a_run_says_what_will_not_work(method, tmp_path) -> None:
    fedfi.run(method, small(model=with_buffers), rounds=1, out=tmp_path / "a")
    (text,) = told(tmp_path / "a")
    assert text.startswith("the model has 1 batch norm ('1') with running statistics")
    assert "data.validation" in text


def test_nothing_is_told_or_changed_where_all_train_the_whole(tmp_path) -> None:
    task = with_validation(small(model=with_buffers))
    whole = fedfi.FedFIbOS(participation=1.0, capacities={1.0: 1.0})
    assert not whole.mixes_networks()
    fedfi.run(whole, dataclasses.replace(task), rounds=1, out=tmp_path / "a")
    assert told(tmp_path / "a") == []
    assert not fedfi.FedAvg().mixes_networks()
