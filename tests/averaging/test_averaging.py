from __future__ import annotations

import pytest
import torch
from tests import tiny

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.federation.folding import WeightedMean
from fedfi.federation.run import run
from fedfi.federation.task import Task, Training


def uneven() -> Task:
    """`tiny.by_hand` with three copies of c1's example: c0 holds one example, c1 three; one step of all."""
    inputs, targets = torch.tensor([[1.0]] + [[2.0]] * 3 + [[1.0], [2.0]]), torch.tensor([0, 1, 1, 1, 0, 1])
    data = tiny.federation(inputs, targets, [[0], [1, 2, 3]], [[4], [5]])
    recipe = Training(learning_rate=1.0, batch_size=4, steps=1)
    return Task(model=lambda: tiny.Zeros(1, 2), data=data, training=recipe)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"weights": "examples"}, [-0.625, 0.625]),  # (1 (1/2, -1/2) + 3 (-1, 1)) / 4
        ({"weights": "uniform"}, [-0.25, 0.25]),  # ((1/2, -1/2) + (-1, 1)) / 2
        ({"weights": "uniform", "server_learning_rate": 2.0}, [-0.5, 0.5]),  # twice the mean update
    ],
)
def test_weights_and_server_learning_rate(options, weights):
    task = uneven()
    result = run(FedAvg(**options), task, rounds=1)
    torch.testing.assert_close(result.model["weight"].flatten(), torch.tensor(weights))


def test_the_proximal_term_pulls_back():
    """Two steps of c0 alone (x = 1, class 0), learning rate 1, mu = 1.

    Step 1 from w = (0, 0): gradient (-1/2, 1/2), so w = (1/2, -1/2). Step 2: p_0 = 1 / (1 + e^-1) = .731059, gradient
    of the loss (p_0 - 1, 1 - p_0) = (-.268941, .268941), of the proximal term w - 0 = (1/2, -1/2), so
    w = (1/2 + .268941 - 1/2) = .268941.
    """
    data = tiny.federation(torch.tensor([[1.0], [1.0]]), torch.tensor([0, 1]), [[0]], [[1]])
    task = Task(lambda: tiny.Zeros(1, 2), data, Training(learning_rate=1.0, batch_size=1, steps=2))
    result = run(FedProx(proximal=1.0), task, rounds=1)
    torch.testing.assert_close(result.model["weight"].flatten(), torch.tensor([0.268941, -0.268941]))


def test_buffers_are_averaged_and_counters_keep_their_maximum():
    mean = WeightedMean()
    mean.add({"running": torch.tensor([1.0]), "batches": torch.tensor(3)}, 1.0)
    mean.add({"running": torch.tensor([4.0]), "batches": torch.tensor(5)}, 2.0)
    result = mean.mean()
    assert result["running"].item() == 3.0  # (1 + 2 * 4) / 3
    assert result["batches"].item() == 5
    assert mean.mean() == {}  # it was handed over


def test_batch_statistics_reach_the_global_model():
    result = run(FedAvg(), tiny.small(model=tiny.with_buffers), rounds=1)
    assert result.model["1.num_batches_tracked"].item() == 3  # the largest client: 11 examples in steps of 4
    assert not torch.equal(result.model["1.running_mean"], torch.zeros(8))


def test_frozen_parameters_do_not_travel_back_and_do_not_move():
    def model():
        net = tiny.network()
        net[0].weight.requires_grad_(False)
        return net

    task = tiny.small(model=model)
    first = FedAvg().init(task, torch.Generator().manual_seed(1)).model
    result = run(FedAvg(), task, rounds=2)
    assert result.failures == []
    assert first["0.weight"].shape == result.model["0.weight"].shape
    again = run(FedAvg(), task, rounds=3)
    assert torch.equal(result.model["0.weight"], again.model["0.weight"])
    assert not torch.equal(result.model["3.weight"], again.model["3.weight"])
