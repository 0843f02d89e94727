"""What tells the rivals apart."""

from __future__ import annotations

import pytest
import torch
from tests.recsys import small

from fedfi.errors import InputError
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run
from fedfi.recsys.colr import CoLR
from fedfi.recsys.exchange import random_subspace
from fedfi.recsys.fedcia import FedCIA
from fedfi.recsys.feddae import FedDAE, encode
from fedfi.recsys.fedmf import FedMF
from fedfi.recsys.graph import Graph


def test_full_rank_is_fedmf():
    """A basis of the whole space changes nothing but the rounding."""
    low = run(CoLR(rank=4), small.task(), rounds=2)
    full = run(FedMF(), small.task(), rounds=2)
    torch.testing.assert_close(low.model["items"], full.model["items"], rtol=1e-4, atol=1e-5)


def test_low_rank_updates_stay_in_a_subspace_and_cost_less():
    result = run(CoLR(rank=1), small.task(), rounds=1)
    start = run(CoLR(rank=1), small.task(learning_rate=1e-30), rounds=1)
    update = result.model["items"] - start.model["items"]
    assert int(torch.linalg.matrix_rank(update, rtol=1e-4)) == 1
    assert result.metrics[0]["bytes/up"] < run(FedMF(), small.task(), rounds=1).metrics[0]["bytes/up"] / 2


def test_a_subspace_is_orthonormal_and_fits():
    basis = random_subspace(8, 3, 5)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3))
    with pytest.raises(InputError, match=r"rank = 9: must be at most the dimension \(nearest valid: 4\)"):
        run(CoLR(rank=9), small.task(), rounds=1)


def test_graph_weights_by_hand():
    """Tables (1, 0), (1, 1), (-1, 0): cosines 1, .71, -1 in the first row; two neighbours: itself and the second."""
    flat = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    near = Graph(neighbours=2, threshold=1.0, layers=1, strength=1.0)
    assert near.weights(flat)[0].tolist() == [0.5, 0.5, 0.0]
    above = Graph(neighbours=0, threshold=1.0, layers=1, strength=1.0)
    # the mean of (1, .71, -1; .71, 1, -.71; -1, -.71, 1) is .11
    assert above.weights(flat).tolist() == [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    spread = above.spread(flat[:, None])
    assert spread[:, 0].tolist() == [[1.0, 0.5], [1.0, 0.5], [-1.0, 0.0]]


def test_alignment_is_descent_on_the_norm():
    """A step is that of autograd on the squared norm over the goal's, and the norm falls."""
    rng = torch.Generator().manual_seed(0)
    table, other = torch.randn(9, 3, generator=rng), torch.randn(9, 3, generator=rng)
    goal = other @ other.T
    leaf = table.clone().requires_grad_()
    loss = (leaf @ leaf.T - goal).square().sum() / goal.norm()
    (gradient,) = torch.autograd.grad(loss, leaf)
    found = FedCIA(steps=1, align_rate=0.05).aligned(table, goal)
    torch.testing.assert_close(found, table - 0.05 * gradient, rtol=1e-4, atol=1e-5)
    far = FedCIA(steps=50, align_rate=0.05).aligned(table, goal)
    assert (far @ far.T - goal).norm() < 0.5 * (table @ table.T - goal).norm()


def test_the_first_table_of_fedcia_is_sent_once():
    """30 items of 4 numbers to six clients in the first round; then only similarities, 30 x 30, every second round."""
    result = run(FedCIA(interval=2), small.task(), rounds=4)
    table, similarity = 6 * 30 * 4 * 4, 6 * 30 * 30 * 4
    down = [m["bytes/down"] for m in result.metrics]
    assert down[0] > table
    assert max(down[1], down[3]) < 6 * 100
    assert similarity < down[2] < similarity + 6 * 200


def test_the_encoders_are_weighed_by_the_gate():
    """Items 0 and 1 of 2: the row is (1, 1) / sqrt(2); own means (1 + 2) / sqrt(2), shared 0; equal weights at 0.

    Each encoder has a dropout of its own: where item 1 is hidden from the own one alone, that has 1 / sqrt(2).
    """
    tree = {
        "own": torch.tensor([[1.0, 0.0], [2.0, 0.0]]),
        "own_bias": torch.zeros(2),
        "encoder": torch.zeros(2, 2),
        "encoder_bias": torch.tensor([0.0, 0.5]),
        "gate": torch.zeros(2, 1),
        "gate_bias": torch.zeros(1),
        "mix": torch.zeros(2, 1),
        "mix_bias": torch.zeros(2),
    }
    hidden = encode(tree, torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))[0]
    torch.testing.assert_close(hidden, torch.tensor([[1 / 2**0.5], [0.0]]))
    mean, log_variance, weights = encode(tree, torch.tensor([0, 1]), torch.ones(2, 2))
    torch.testing.assert_close(mean, torch.tensor([[3 / 2**0.5], [0.0]]))
    torch.testing.assert_close(log_variance, torch.tensor([[0.0], [0.5]]))
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.5]))


def test_the_autoencoder_learns():
    """The likelihood of a user's items rises."""
    task = small.task(optimizer="adam", learning_rate=0.02, clip_norm=None, epochs=3)
    result = run(FedDAE(kl=0.01), task, rounds=10, evaluate=Evaluate(every=10))
    losses = [m["train/loss"] for m in result.metrics]
    assert result.failures == []
    assert losses[-1] < 0.95 * losses[0]
