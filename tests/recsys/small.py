"""Federations of a few users, for methods of recommendation."""

from __future__ import annotations

import numpy as np

from fedfi.data.ratings import RatingsData
from fedfi.federation.run import run
from fedfi.federation.task import Task, Training
from fedfi.models.itemtable import ItemTable


def ratings(users: int = 6, items: int = 30, seed: int = 0, **options) -> RatingsData:
    """User i has 4 + i training items, drawn at random."""
    rng = np.random.default_rng(seed)
    train, validation, test = [], [], []
    for user in range(users):
        own = rng.permutation(items)[: 6 + user]
        train.append(np.sort(own[2:]).astype(np.int64))
        validation.append(int(own[0]))
        test.append(int(own[1]))
    return RatingsData(
        users=tuple(f"c{i}" for i in range(users)),
        items=tuple(f"i{i}" for i in range(items)),
        train=tuple(train),
        validation=np.array(validation),
        test=np.array(test),
        name="small",
        **options,
    )


def task(data: RatingsData | None = None, dimension: int = 4, **recipe) -> Task:
    """Batches of 16 examples, so that users have two to four a round."""
    data = ratings() if data is None else data
    recipe = {"learning_rate": 0.1, "batch_size": 16, "epochs": 1, "clip_norm": 1.0} | recipe
    items = len(data.items)
    return Task(model=lambda: ItemTable(items, dimension, 1.0), data=data, training=Training(**recipe))


def both(algorithm, make=task, rounds: int = 3, **options):
    """The run with cohorts, and the run client after client, with their engines' memories."""
    from fedfi.engines.local import LocalEngine

    found = []
    for cohorts in (options.pop("cohorts", 128), 0):
        one = make()
        engine = LocalEngine(algorithm, one, cohorts=cohorts)
        found.append((run(algorithm, one, rounds=rounds, engine=engine, **options), engine.memory()))
    return found
