"""Negatives that avoid held-out items tell the training which items they are."""

from __future__ import annotations

import math

from tests.recsys import small

from fedfi.data.interactions import leave_one_out
from fedfi.data.recommendation import load_ratings
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run
from fedfi.recsys.fedrkg import FedRKG


def local_only(negatives: str) -> tuple[float, int, int]:
    data = leave_one_out(load_ratings("synthetic_ratings"), negatives=negatives)
    task = small.task(data, dimension=16, batch_size=256)
    result = run(FedRKG(interval=None, item_rate=8.0), task, rounds=60, evaluate=Evaluate(every=60))
    return result.metrics[-1]["ranking/hr@10"], len(data.items), len(data.users)


def test_local_only_training_is_random_without_the_leak():
    """Rows of items that a user never trained on know nothing: 10 of about m - 19 candidates are hit by chance."""
    found, items, users = local_only("exclude_train")
    chance = 10 / (items - 19)
    assert found < chance + 4 * math.sqrt(chance * (1 - chance) / users)


def test_local_only_training_finds_the_held_out_items_with_the_leak():
    """They are the only ones that were never pushed down."""
    found, *_ = local_only("exclude_all")
    assert found > 0.3
