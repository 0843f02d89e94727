"""Centralised baselines and the two floors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.recsys import small

from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run
from fedfi.recsys.itemknn import ItemKNN
from fedfi.recsys.mf import MF
from fedfi.recsys.neumf import NeuMF
from fedfi.recsys.popularity import Popularity
from fedfi.recsys.random import Random

METHODS = {
    "popularity": Popularity(participation=0.5),
    "random": Random(),
    "itemknn": ItemKNN(neighbours=5),
    "mf": MF(),
    "neumf": NeuMF(),
}


@pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS)
def test_cohorts_equal_client_after_client(algorithm):
    (many, _), (single, _) = small.both(algorithm)
    assert many.failures == single.failures == []
    assert all(torch.equal(many.model[n], single.model[n]) for n in single.model)
    ranked = [{k: v for k, v in m.items() if k != "seconds"} for m in many.metrics]
    assert ranked == [{k: v for k, v in m.items() if k != "seconds"} for m in single.metrics]


def test_popularity_counts_users():
    data = small.ratings()
    result = run(Popularity(), small.task(data), rounds=1)
    assert result.model["counts"].tolist() == np.bincount(np.concatenate(data.train), minlength=30).tolist()
    assert result.metrics[0]["bytes/up"] < 6 * (4 + 150)  # 30 bits a user, and headers


def test_item_similarity_is_the_cosine_of_columns():
    """Users 0 and 1 have item a, users 1 and 2 item b: cosine 1 / sqrt(2 2) = 1/2; with shrinkage 1 half of it."""
    data = small.ratings(users=3, items=30)
    data = type(data)(
        users=data.users,
        items=data.items,
        train=(np.array([0]), np.array([0, 1]), np.array([1])),
        validation=np.array([2, 2, 2]),
        test=np.array([3, 3, 3]),
    )
    plain = run(ItemKNN(shrinkage=0.0), small.task(data), rounds=1).model["similarity"]
    assert plain[0, 1] == plain[1, 0] == pytest.approx(0.5)
    assert plain.sum() == pytest.approx(1.0)
    assert run(ItemKNN(shrinkage=1.0), small.task(data), rounds=1).model["similarity"][0, 1] == pytest.approx(0.25)


@pytest.mark.parametrize("algorithm", [MF(), NeuMF()], ids=["mf", "neumf"])
def test_factorisations_learn_what_they_are_shown(algorithm):
    """On users of two tastes the loss falls to a fraction of log 2."""
    rng = np.random.default_rng(0)
    train, held = [], []
    for user in range(20):
        own = rng.permutation(np.arange(15) + 15 * (user % 2))
        train.append(np.sort(own[:11]))
        held.append(own[-2:])
    held = np.array(held)
    data = small.ratings()
    data = type(data)(
        users=tuple(f"c{i}" for i in range(20)),
        items=data.items,
        train=tuple(train),
        validation=held[:, 0],
        test=held[:, 1],
    )
    task = small.task(data, dimension=8, optimizer="adam", learning_rate=0.02, batch_size=64)
    result = run(algorithm, task, rounds=40, evaluate=Evaluate(every=40))
    assert result.metrics[-1]["train/loss"] < 0.4
    assert result.metrics[-1]["ranking/hr@5"] > 0.7  # 4 of 15 of the taste are left


def test_random_is_random():
    """Ten of about 20 to 24 candidates."""
    data = small.ratings(users=15, items=200)
    result = run(Random(), small.task(data), rounds=1)
    assert result.metrics[0]["ranking/hr@20"] <= 0.5
