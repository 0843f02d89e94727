"""What a run and a task are given, checked before anything runs; what is said of clients at the start."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from tests import tiny
from torch import nn

import fedfi
from fedfi.federation.record import read_lines

NET = nn.Linear(6, 3)
BODY = nn.Linear(6, 8)
LOADED = (tiny.small().data.test.dataset, None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": LOADED}, r"data is a tuple, expected fedfi.FederatedData: fedfi.federate\(\*data, clients=10\)"),
        ({"data": LOADED[0]}, r"data is a Dataset, expected fedfi.FederatedData: fedfi.federate\(data, clients=10\)"),
        ({"data": None}, "data is None, expected fedfi.FederatedData, which fedfi.federate makes, or"),
        ({"training": {"batch_size": 5}}, r"training is a dict, expected fedfi.Training\(batch_size=5\)"),
        ({"training": None}, r"training is None, expected fedfi.Training\(learning_rate=0.1\)"),
        ({"loss": 3}, "loss is 3, expected a function"),
        ({"evaluation": None}, "evaluation is None, expected a function"),
        ({"device": "gpu"}, "device is 'gpu', expected a torch.device; choose from 'cpu'"),
        ({"device": "meta"}, "device is 'meta', which is not here; choose from 'cpu'"),
        ({"device": torch.device("cuda", 99)}, "device is 'cuda:99', which is not here; choose from 'cpu'"),
        ({"shared": "runs"}, "shared is 'runs', expected a pathlib.Path"),
        ({"model": "mlp"}, r"model is 'mlp', .* such as `lambda: fedfi.build\('mlp', data.spec\)`"),
        ({"model": None}, "model is None, expected a function that makes a torch.nn.Module"),
        ({"model": NET}, r"model is the module Linear.*`lambda: Linear\(...\)`, or `lambda: copy.deepcopy\(net\)`"),
        ({"train": None}, r"unknown argument 'train'; did you mean 'training'\?"),
    ],
)
def test_what_no_task_is_made_of(change: dict, text: str) -> None:
    with pytest.raises(fedfi.InputError, match=f"^Task: {text}"):
        fedfi.Task(**{"model": tiny.network, "data": tiny.small().data} | change)


def test_a_device_may_be_named() -> None:
    assert dataclasses.replace(tiny.small(), device="cpu").device == torch.device("cpu")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "^run: rounds is missing$"),
        ({"round": 1}, r"^run: unknown argument 'round'; did you mean 'rounds'\?$"),
        ({"evaluate": {"every": 2}}, r"^evaluate is a dict, expected fedfi.Evaluate\(every=2\)$"),
        ({"evaluate": False}, r"^evaluate is False, expected fedfi.Evaluate\(every=2\)$"),
        ({"out": 3}, "^out is 3, expected the path of a run directory"),
        ({"observe": 3}, "^observe is 3, expected a function"),
        ({"engine": 3}, "^engine is 3, expected a fedfi.Engine"),
        ({"config": 3}, "^config is 3, expected a table of settings$"),
    ],
)
def test_what_a_run_does_not_take(arguments: dict, text: str) -> None:
    given = {"rounds": 1} | arguments if arguments and "round" not in arguments else arguments
    with pytest.raises(fedfi.InputError, match=text):
        fedfi.run(fedfi.FedAvg(), tiny.small(), **given)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: NET, r"task.model returned the same Linear twice, .* give `lambda: copy.deepcopy\(net\)`"),
        (lambda: nn.Sequential(BODY, nn.Linear(8, 3)), "task.model made two Sequential that share the .* '0.weight'"),
    ],
)
def test_a_factory_that_hands_out_trained_weights_is_refused(model, text: str) -> None:
    with pytest.raises(fedfi.InputError, match=text):
        fedfi.run(fedfi.FedAvg(), dataclasses.replace(tiny.small(), model=model), rounds=1)


def test_what_the_refusal_advises_is_accepted_and_runs_do_not_change_each_other() -> None:
    import copy

    task = dataclasses.replace(tiny.small(), model=lambda: copy.deepcopy(NET))
    first, second = (fedfi.run(fedfi.FedAvg(), task, rounds=1) for _ in range(2))
    assert all(first.model[name].equal(second.model[name]) for name in first.model)


def test_parts_that_are_never_trained_may_be_shared() -> None:
    frozen = nn.Linear(6, 8).requires_grad_(False)
    task = dataclasses.replace(tiny.small(), model=lambda: nn.Sequential(frozen, nn.Linear(8, 3)))
    assert not fedfi.run(fedfi.FedAvg(), task, rounds=1).failures


def test_an_evaluation_gives_values_by_name() -> None:
    task = dataclasses.replace(tiny.small(), evaluation=lambda o, y: (o.argmax(1) == y).float())
    with pytest.raises(fedfi.InputError, match=r"the evaluation returned a Tensor, expected a dictionary .* such as {"):
        fedfi.run(fedfi.FedAvg(), task, rounds=1)


def without(task: fedfi.Task, part: str, *clients: str) -> fedfi.Task:
    """The same task, of whose clients some have no examples of a part."""
    held = dict(task.data.clients)
    for client in clients:
        empty = getattr(held[client], part).subset(torch.arange(0))
        held[client] = dataclasses.replace(held[client], **{part: empty})
    return dataclasses.replace(task, data=dataclasses.replace(task.data, clients=held))


@pytest.mark.parametrize(
    ("part", "clients", "text"),
    [
        (
            "train",
            ["c2"],
            "1 of 6 clients ('c2') has no training examples and will fail in every round: leave them out",
        ),
        ("test", ["c0", "c1"], "2 of 6 clients ('c0', 'c1') have no test examples and will be missing from local/*"),
        ("test", ["c0", "c1", "c2", "c4"], "4 of 6 clients ('c0', 'c1', 'c2', ...) have no test examples"),
    ],
)
def test_who_cannot_train_or_is_not_judged_is_said_at_the_start(part, clients, text, tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="fedfi"):
        fedfi.run(fedfi.FedAvg(), without(tiny.small(), part, *clients), rounds=1, out=tmp_path / "run")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"warning: {text}")
    first, *_ = read_lines(tmp_path / "run/events.jsonl")
    assert first["event"] == "warning"
    assert first["text"].startswith(text)


def test_nothing_is_said_where_nothing_is_missing_or_nobody_asks(caplog) -> None:
    fedfi.run(fedfi.FedAvg(), tiny.small(), rounds=1)
    unasked = fedfi.Evaluate(local=False)
    fedfi.run(fedfi.FedAvg(), without(tiny.small(), "test", "c0"), rounds=1, evaluate=unasked)
    assert not caplog.records


def test_a_federation_that_nobody_trains_is_refused() -> None:
    task = tiny.small(2)
    with pytest.raises(fedfi.InputError, match="none of the 2 clients of 'tiny' has training examples"):
        fedfi.run(fedfi.FedAvg(), without(task, "train", "c0", "c1"), rounds=1)
    nobody = dataclasses.replace(task, data=dataclasses.replace(task.data, clients={}))
    with pytest.raises(fedfi.InputError, match="'tiny' has no clients"):
        fedfi.run(fedfi.FedAvg(), nobody, rounds=1)
