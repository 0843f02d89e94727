"""Losses of scores against hand computations, autograd and the size of a cohort."""

from __future__ import annotations

import math

import pytest
import torch
from tests.recsys import small
from torch.nn import functional

from fedfi.recsys.fedmf import FedMF
from fedfi.recsys.objective import objective
from fedfi.recsys.recipe import recipe_of

NAMES = ("bce", "bpr", "softmax")
SCORES = torch.tensor([2.0, 1.0, -1.0, 0.5, 0.0, 3.0])
LABELS = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])


def test_by_hand():
    """Two positives with two negatives each."""
    bpr = [(math.log1p(math.exp(-1)) + math.log1p(math.exp(-3))) / 2]
    bpr += [(math.log1p(math.exp(-0.5)) + math.log1p(math.exp(2.5))) / 2]
    softmax = [math.log(sum(map(math.exp, s))) - s[0] for s in ([2.0, 1.0, -1.0], [0.5, 0.0, 3.0])]
    assert objective("bpr", 2).losses(SCORES, LABELS).tolist() == pytest.approx(bpr, rel=1e-6)
    assert objective("softmax", 2).losses(SCORES, LABELS).tolist() == pytest.approx(softmax, rel=1e-6)


def test_softmax_is_cross_entropy():
    scores = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * 4
    expected = functional.cross_entropy(scores, torch.zeros(7, dtype=torch.int64), reduction="none")
    torch.testing.assert_close(objective("softmax", 4).losses(scores.flatten(), torch.zeros(35)), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_the_closed_gradient_is_autograds(name, scale):
    rng = torch.Generator().manual_seed(1)
    scores = (torch.randn(45, generator=rng) * scale).requires_grad_()
    labels, goal = torch.eye(5)[0].repeat(9), objective(name, 4)
    losses = goal.losses(scores, labels)
    (expected,) = torch.autograd.grad(losses.sum(), scores)
    terms, found = goal.closed(scores.detach(), labels)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(terms, losses.detach())


@pytest.mark.parametrize("name", NAMES)
def test_other_groups_change_no_bit(name):
    rng, goal = torch.Generator().manual_seed(2), objective(name, 4)
    scores, labels = torch.randn(500, generator=rng), torch.eye(5)[0].repeat(100)
    terms, gradient = goal.closed(scores, labels)
    for stop in (5, 45, 320):
        some, part = goal.closed(scores[:stop], labels[:stop])
        assert torch.equal(some, terms[: stop // goal.group])
        assert torch.equal(part, gradient[:stop])


@pytest.mark.parametrize(("loss", "given", "batch"), [("bce", 16, 16), ("bpr", 16, 15), ("softmax", 3, 5)])
def test_a_batch_holds_whole_groups(loss, given, batch):
    assert recipe_of(small.task(batch_size=given), 0, 1.0, loss=loss).batch == batch


@pytest.mark.parametrize("loss", NAMES)
def test_training_lessens_it(loss):
    (many, _), _ = small.both(FedMF(loss=loss), lambda: small.task(clip_norm=None), rounds=30)
    losses = [line["train/loss"] for line in many.metrics]
    assert losses[-1] < 0.8 * losses[0]
