from __future__ import annotations

import dataclasses

import pytest
import torch
from tests import tiny

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.federation import training
from fedfi.federation.run import run
from fedfi.submodel.heterofl import HeteroFL


@pytest.fixture
def trained(monkeypatch):
    """Who was really trained, and in which round."""
    calls = []
    plain = training._train

    def counted(client, *rest):
        calls.append((client.round, client.id))
        return plain(client, *rest)

    monkeypatch.setattr(training, "_train", counted)
    return calls


def with_dropout():
    return tiny.nn.Sequential(tiny.nn.Linear(6, 8), tiny.nn.Dropout(0.5), tiny.nn.Linear(8, 3))


@pytest.mark.parametrize("model", [tiny.with_buffers, with_dropout])
def test_a_second_run_trains_no_first_round_and_changes_no_bit(tmp_path, trained, model):
    task = tiny.small(model=model)
    alone = run(FedAvg(), task, rounds=2)
    sharing = dataclasses.replace(task, shared=tmp_path)
    first = run(FedAvg(), sharing, rounds=2)
    trained.clear()
    second = run(FedAvg(weights="uniform"), sharing, rounds=1)
    assert trained == []
    again = run(FedAvg(), sharing, rounds=2)
    assert {r for r, _ in trained} == {1}
    assert second.metrics[0]["train/loss"] == first.metrics[0]["train/loss"]
    for other in (first, again):
        assert all(torch.equal(alone.model[n], other.model[n]) for n in alone.model)


@pytest.mark.parametrize(
    "change",
    [{"training": training.Training(learning_rate=0.2, batch_size=4)}, {"model": tiny.with_buffers}],
    ids=["recipe", "model"],
)
def test_what_differs_is_trained_anew(tmp_path, trained, change):
    task = dataclasses.replace(tiny.small(), shared=tmp_path)
    run(FedAvg(), task, rounds=1)
    trained.clear()
    run(FedAvg(), dataclasses.replace(task, **change), rounds=1)
    assert len(trained) == 6
    trained.clear()
    run(FedAvg(), task, rounds=1, seed=1)
    assert len(trained) == 6


def test_training_with_more_than_the_loss_is_not_shared(tmp_path, trained):
    task = dataclasses.replace(tiny.small(), shared=tmp_path)
    run(FedProx(proximal=1.0), task, rounds=1)
    run(FedProx(proximal=1.0), task, rounds=1)
    assert len(trained) == 12
    assert not any(tmp_path.iterdir())


def test_a_damaged_file_is_trained_anew(tmp_path, trained):
    task = dataclasses.replace(tiny.small(), shared=tmp_path)
    one = run(FedAvg(), task, rounds=1)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    trained.clear()
    other = run(FedAvg(), task, rounds=1)
    assert len(trained) == 6
    assert all(torch.equal(one.model[n], other.model[n]) for n in one.model)


def test_training_under_hooks_or_other_flags_is_another_training(tmp_path):
    """HeteroFL's scaler is a hook on the layers of the same small network: its clients learn something else."""
    mix = {"capacities": {0.5: 1.0}, "ratio": "width", "masked_loss": False, "label_rows": False}
    task = tiny.small(model=with_dropout)
    sharing = dataclasses.replace(task, shared=tmp_path)
    plain = run(HeteroFL(scaler=False, **mix), sharing, rounds=1)
    scaled = run(HeteroFL(scaler=True, **mix), sharing, rounds=1)
    alone = run(HeteroFL(scaler=True, **mix), task, rounds=1)
    assert not torch.equal(plain.model["0.weight"], scaled.model["0.weight"])
    assert all(torch.equal(alone.model[n], scaled.model[n]) for n in alone.model)

    class Flagged(tiny.nn.Linear):
        negative = False

        def forward(self, rows):
            return super().forward(-rows if self.negative else rows)

    def flagged(negative):
        def model():
            made = Flagged(6, 3)
            made.negative = negative
            return made

        return model

    for negative in (False, True):
        there = run(FedAvg(), dataclasses.replace(sharing, model=flagged(negative)), rounds=1)
        here = run(FedAvg(), dataclasses.replace(task, model=flagged(negative)), rounds=1)
        assert all(torch.equal(there.model[n], here.model[n]) for n in here.model)
