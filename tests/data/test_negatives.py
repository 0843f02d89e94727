"""What a client trains on: every positive once, even negatives, and nothing that held-out items could be felt by."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.recsys import small

from fedfi.data.negatives import stream
from fedfi.errors import InputError


def epoch(data, rows=None, keys=None):
    rows = np.arange(len(data.users)) if rows is None else rows
    keys = np.arange(len(rows)).astype(np.uint64) if keys is None else keys
    return stream(data.interactions, rows, keys)


@pytest.mark.parametrize("negatives", ["exclude_train", "exclude_all"])
def test_each_positive_comes_once_with_its_negatives(negatives):
    data = small.ratings(negatives=negatives)
    drawn = epoch(data)
    for user, own in enumerate(data.train):
        mine = drawn.client == user
        item, label = drawn.item[mine], drawn.label[mine]
        assert sorted(item[label == 1].tolist()) == own.tolist()
        assert label.reshape(-1, 5).tolist() == [[1, 0, 0, 0, 0]] * len(own)
        assert drawn.place[mine].tolist() == list(range(5 * len(own)))
        excluded = {*own.tolist()}
        if negatives == "exclude_all":
            excluded |= {int(data.validation[user]), int(data.test[user])}
        assert not excluded & {*item[label == 0].tolist()}


def test_negatives_are_even_over_what_is_allowed():
    """8,000 draws of user 0 (4 of 30 items excluded): 8,000 / 26 = 308 each, 5 standard deviations are 86."""
    data = small.ratings()
    keys = np.arange(500).astype(np.uint64)
    drawn = epoch(data, np.zeros(500, dtype=np.int64), keys)
    counts = np.bincount(drawn.item[drawn.label == 0], minlength=30)
    allowed = np.setdiff1d(np.arange(30), data.train[0])
    assert counts[data.train[0]].sum() == 0
    assert abs(counts[allowed] - 8_000 / 26).max() < 86


def test_a_client_draws_the_same_alone_and_among_others():
    data = small.ratings()
    everyone = epoch(data)
    for user, name in enumerate(data.users):
        own = stream(data.clients[name].interactions, np.zeros(1, dtype=np.int64), np.array([user], dtype=np.uint64))
        mine = everyone.client == user
        assert own.item.tolist() == everyone.item[mine].tolist()


def test_held_out_items_cannot_be_felt_in_training():
    """Whatever items are held out, the stream is the same; with `exclude_all` it is not."""
    for negatives, felt in (("exclude_train", False), ("exclude_all", True)):
        data = small.ratings(negatives=negatives)
        rng = np.random.default_rng(1)
        others = [rng.permutation(np.setdiff1d(np.arange(30), own))[:2] for own in data.train]
        held = np.array(others)
        moved = dataclasses.replace(data, validation=held[:, 0], test=held[:, 1])
        assert (epoch(data).item.tolist() != epoch(moved).item.tolist()) == felt


def test_overlaps_are_refused():
    data = small.ratings()
    with pytest.raises(InputError, match="an item of user 'c0' is in two of train, validation, test"):
        dataclasses.replace(data, test=data.validation)
    with pytest.raises(InputError, match="user 'c0' has all 6 items"):
        small.ratings(users=1, items=6, negatives="exclude_all")
