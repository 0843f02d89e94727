"""Partitions: what each promises, and every way to ask for an impossible one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfi.data import partitions
from fedfi.data.partition import apportion, assign, check_partition
from fedfi.errors import InputError

TARGETS = np.random.default_rng(0).integers(0, 10, 2000)
CASES = [
    {"by": "iid"},
    {"by": "dirichlet", "alpha": 0.3},
    {"by": "dirichlet-per-client", "alpha": 0.3},
    {"by": "pathological", "classes_per_client": 2},
    {"by": "pathological", "classes_per_client": 10},
    {"by": "size", "sizes": [100] * 19 + [2]},
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("partition", CASES, ids=str)
def test_every_example_once_and_nobody_empty(partition: dict[str, object]) -> None:
    parts = assign(TARGETS, 20, partition, rng())
    together = np.concatenate(parts)
    assert len(parts) == 20
    assert min(map(len, parts)) > 0
    assert len(together) == len(np.unique(together))
    assert len(together) == (1902 if partition["by"] == "size" else 2000)
    assert check_partition(partition).by in partitions()


@pytest.mark.parametrize("partition", CASES, ids=str)
def test_same_seed_same_bits_whatever_the_global_state(partition: dict[str, object]) -> None:
    import random

    first = assign(TARGETS, 20, partition, rng(3))
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = np.random.get_state()[1].copy(), random.getstate()  # type: ignore[union-attr, index] # noqa: NPY002
    second = assign(TARGETS, 20, partition, rng(3))
    assert all(map(np.array_equal, first, second))
    assert np.array_equal(np.random.get_state()[1], before[0])  # type: ignore[index] # noqa: NPY002
    assert random.getstate() == before[1]


@settings(derandomize=True, database=None)
@given(
    total=st.integers(0, 500),
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any),
    seed=st.integers(0, 9),
)
def test_apportion_is_exact_in_sum_and_within_one(total: int, weights: list[int], seed: int) -> None:
    exact = total * np.array(weights) / sum(weights)
    for generator in (None, rng(seed)):
        shares = apportion(total, np.array(weights), generator)
        assert shares.sum() == total
        assert (np.abs(shares - exact) < 1 + 1e-9).all()
        assert (shares[np.array(weights) == 0] == 0).all()


def test_apportion_gives_the_rest_to_the_largest_remainders() -> None:
    """10 in proportion 1 : 2 : 4 is 1.43, 2.86, 5.71: floors 1, 2, 5; the two left go to .86 and .71."""
    assert apportion(10, np.array([1, 2, 4])).tolist() == [1, 3, 6]


def test_dirichlet_per_client_follows_the_formula() -> None:
    """Class c is divided in proportion to q_kc / sum_k q_kc with q_k ~ Dir(alpha 1_10), drawn first."""
    parts = assign(TARGETS, 6, {"by": "dirichlet-per-client", "alpha": 0.2}, rng(4))
    preference = rng(4).dirichlet(np.full(10, 0.2), size=6)
    counts = np.stack([np.bincount(TARGETS[part], minlength=10) for part in parts])
    expected = np.bincount(TARGETS) * preference / preference.sum(0)
    assert (np.abs(counts - expected) < 1).all()


def test_dirichlet_shares_have_the_spread_of_the_distribution() -> None:
    """A share of Dir(alpha 1_K) has the variance (K - 1) / (K^2 (K alpha + 1)); here K = 10, 400 a class."""
    targets = np.repeat(np.arange(50), 400)
    for alpha in (0.3, 1.0, 10.0):
        parts = assign(targets, 10, {"by": "dirichlet", "alpha": alpha}, rng())
        counts = np.stack([np.bincount(targets[part], minlength=50) for part in parts])
        expected = 400 * (9 / (100 * (10 * alpha + 1))) ** 0.5
        assert np.std(counts) == pytest.approx(expected, rel=0.15)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(clients=st.integers(1, 25), held=st.integers(1, 10), seed=st.integers(0, 9))
def test_pathological_clients_hold_their_number_of_classes(clients: int, held: int, seed: int) -> None:
    partition = {"by": "pathological", "classes_per_client": held}
    if clients * held < 10:
        with pytest.raises(InputError, match="some of the 10 classes are held by nobody"):
            assign(TARGETS, clients, partition, rng(seed))
        return
    parts = assign(TARGETS, clients, partition, rng(seed))
    assert [len(np.unique(TARGETS[part])) for part in parts] == [held] * clients
    assert sum(map(len, parts)) == len(TARGETS)


def test_minimum_is_kept() -> None:
    parts = assign(TARGETS, 10, {"by": "dirichlet", "alpha": 0.5, "minimum": 40}, rng())
    assert min(map(len, parts)) >= 40
    parts = assign(TARGETS, 10, {"by": "dirichlet-per-client", "alpha": 0.5, "minimum": 40}, rng())
    assert min(map(len, parts)) >= 40


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({}, "partition.by: is missing"),
        ({"by": "dirichlt"}, "did you mean 'dirichlet'"),
        ({"by": "dirichlet"}, "partition.alpha: is missing"),
        ({"by": "dirichlet", "alpah": 1}, "partition.alpah: unknown key; did you mean 'alpha'"),
        ({"by": "iid", "alpha": 1}, "partition.alpha: unknown key"),
    ],
)
def test_wrong_keys(partition: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_partition(partition)


@pytest.mark.parametrize(
    ("clients", "partition", "message"),
    [
        (None, {"by": "iid"}, "needs the number of clients"),
        (0, {"by": "iid"}, "clients = 0: must be at least 1"),
        (2.0, {"by": "iid"}, r"clients = 2\.0: must be a whole number"),
        (2001, {"by": "iid"}, "clients = 2001: there are only 2000 training examples"),
        (
            5,
            {"by": "dirichlet", "alpha": 0},
            "partition.alpha = 0: must be above 0.*such as 0.3",
        ),
        (5, {"by": "dirichlet", "alpha": -1.0}, "partition.alpha = -1.0: must be above 0"),
        (
            5,
            {"by": "dirichlet", "alpha": float("nan")},
            "partition.alpha = nan: is not a number; must be a finite number",
        ),
        (5, {"by": "dirichlet-per-client", "alpha": "x"}, 'partition.alpha = "x": must be a number'),
        (5, {"by": "dirichlet", "alpha": 1, "minimum": 0}, "partition.minimum = 0: must be at least 1"),
        (5, {"by": "dirichlet", "alpha": 1, "minimum": 401}, "need 2005, there are 2000"),
        (5, {"by": "dirichlet", "alpha": 0.01, "minimum": 390}, "raise alpha, or take fewer clients"),
        (3, {"by": "dirichlet-per-client", "alpha": 1e-6}, "raise alpha, or take fewer clients"),
        (5, {"by": "pathological", "classes_per_client": 11}, "have only 10 classes"),
        (
            5,
            {"by": "pathological", "classes_per_client": True},
            "per_client = true: must be a whole number",
        ),
        (2000, {"by": "pathological", "classes_per_client": 5}, "take fewer clients"),
        (1000, {"by": "pathological", "classes_per_client": 10}, "fewer than clients that are to hold it"),
        (3, {"by": "size", "sizes": [1, 2]}, "clients = 3: partition.sizes lists 2"),
        (None, {"by": "size", "sizes": [2000, 2]}, "sum to 2002, but only 2000"),
        (None, {"by": "size", "sizes": [5, 0]}, r"partition\.sizes\.1 = 0: must be at least 1"),
        (None, {"by": "size", "sizes": []}, "partition.sizes = .*must be of at least 1 entries"),
    ],
)
def test_impossible_partitions_end_with_a_clear_error(
    clients: int | None, partition: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        assign(TARGETS, clients, partition, rng())
