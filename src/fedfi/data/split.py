"""From one data set to a federation: validation first, then test, then clients, each by its own generator."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedfi.arguments import expect, named
from fedfi.data.dataset import Dataset, Examples
from fedfi.data.federated import ClientData, FederatedData
from fedfi.data.partition import Array, Natural, apportion, assign, check_clients, check_partition, whole
from fedfi.errors import InputError, SettingError, unknown
from fedfi.validation import shown


@named
def federate(
    train: Dataset,
    test: Dataset | None = None,
    *,
    clients: int | None = None,
    partition: Mapping[str, Any] | None = None,
    validation: int = 0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Divides a data set among clients; the same bits for the same seed, whatever ran before.

    1. `validation` examples are cut out of `train` for the server, stratified by class.
    2. Without an official test set, `test_fraction` of the rest is, stratified by class; for a natural
       partition within each client, which keeps at least one training example.
    3. The rest is divided among the clients. Clients are named ``"0"``, ``"1"``, ... or, for a natural
       partition, by the sorted values of the column.
    4. A client's own test set is its share of the global one, distributed as its training data: the test
       examples of each class are divided in proportion to how many training examples of it each client has,
       by largest remainders. A natural partition divides the test set by the same column instead.
    5. What normalises inputs (`Dataset.fitted`) is computed from all clients' training examples, unless the
       data set brings it along.

    Args:
        train: Examples to divide.
        test: The official test set; without one, `test_fraction` of the training set is held out.
        clients: Number of clients; None for ``natural`` and ``size``, which say it themselves.
        partition: Such as ``{"by": "dirichlet", "alpha": 0.3}``; see `partitions`. By default ``{"by": "iid"}``.
        validation: Number of examples kept at the server.
        test_fraction: Share of `train` held out where `test` is None, in (0, 1).
        seed: At least 0; give it the seed of the run, so that both change together.

    Returns:
        The federation, checked to be disjoint.

    Raises:
        InputError: If a setting is wrong or cannot be met.
    """
    if isinstance(train, tuple):
        raise InputError("train is a tuple, expected a Dataset; unpack what load gives: federate(*load(...), ...)")
    expect("federate: train", train, Dataset, "a fedfi.Dataset, such as the first that fedfi.load gives")
    expect("federate: test", test, (Dataset, type(None)), "a fedfi.Dataset, or None")
    partition = {"by": "iid"} if partition is None else partition
    kind = check_partition(partition)
    check_clients(kind, clients)
    natural = isinstance(kind, Natural)
    seed = whole("seed", seed, least=0)
    validation = whole("validation", validation, least=0)
    if test is None and not (isinstance(test_fraction, float) and 0 < test_fraction < 1):
        raise SettingError(f"test_fraction = {shown(test_fraction)}: must lie between 0 and 1, such as 0.2")
    if test is not None:
        _check_same(train, test)
    targets = train.targets.numpy()
    rows = np.arange(len(targets))
    if validation >= len(targets):
        raise SettingError(
            f"validation = {validation}: {train.name!r} has only {len(targets)} examples "
            f"(nearest valid: {len(targets) - 1})"
        )
    server = _stratified(targets, rows, validation, _rng(seed, "validation"))
    rows = np.setdiff1d(rows, server)

    divide = _natural if natural else _synthetic
    held, held_test, test_rows = divide(train, test, rows, clients, partition, test_fraction, seed)
    if len(test_rows) == 0:
        raise SettingError(f"test_fraction = {shown(test_fraction)}: leaves no test example of {len(rows)}; raise it")

    if train.mean is None:
        train = train.fitted(torch.from_numpy(np.sort(np.concatenate(list(held.values())))))
    if test is None:
        tested = train
        origin = "held out within clients" if natural else "carved out of train"
    else:
        tested = dataclasses.replace(test, mean=train.mean, std=train.std, fill=train.fill)
        origin = "official"
    data = FederatedData(
        clients={name: ClientData(_view(train, held[name]), _view(tested, held_test[name])) for name in held},
        test=_view(tested, test_rows),
        validation=_view(train, server) if validation else None,
        spec=train.spec,
        name=train.name,
        origin={"train": "train", "test": origin, "validation": "cut out of train" if validation else "none"},
        partition=dict(partition),
        seed=seed,
    )
    data.check()
    return data


def _synthetic(
    train: Dataset,
    test: Dataset | None,
    rows: Array,
    clients: int | None,
    partition: Mapping[str, Any],
    test_fraction: float,
    seed: int,
) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """Training and test rows of each client and all test rows, by labels alone."""
    targets = train.targets.numpy()
    if test is None:
        count = _fraction(len(rows), test_fraction)
        if count == len(rows):
            raise SettingError(f"test_fraction = {test_fraction}: leaves no training example of {count}; lower it")
        test_rows = _stratified(targets, rows, count, _rng(seed, "test"))
        rows, test_targets = np.setdiff1d(rows, test_rows), targets
    else:
        test_rows, test_targets = np.arange(len(test)), test.targets.numpy()
    # Data sets may come sorted by class, and partitioners hand out examples in order.
    rows = _rng(seed, "shuffle").permutation(rows)
    parts = assign(targets[rows], clients, partition, _rng(seed, "partition"))
    held = [rows[part] for part in parts]
    counts = np.stack([np.bincount(targets[part], minlength=train.spec.classes) for part in held])
    rng = _rng(seed, "client-test")
    shares: list[list[Array]] = [[] for _ in held]
    for label in range(train.spec.classes):
        mine = rng.permutation(test_rows[test_targets[test_rows] == label])
        if counts[:, label].any():
            sizes = apportion(len(mine), counts[:, label], rng)
            for share, piece in zip(shares, np.split(mine, np.cumsum(sizes)[:-1]), strict=True):
                share.append(piece)
    names = [str(number) for number in range(len(held))]
    tests = [np.concatenate([test_rows[:0], *share]) for share in shares]
    return dict(zip(names, held, strict=True)), dict(zip(names, tests, strict=True)), test_rows


def _natural(
    train: Dataset,
    test: Dataset | None,
    rows: Array,
    clients: int | None,
    partition: Mapping[str, Any],
    test_fraction: float,
    seed: int,
) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """Training and test rows of each client and all test rows, by the column of natural ids."""
    column = partition.get("column", train.group_column)
    groups = _groups(train, column)
    names = [str(name) for name in np.unique(groups[rows])]
    if clients is not None and clients != len(names):
        raise SettingError(
            f"clients = {clients}: column {column!r} of {train.name!r} names {len(names)} clients; leave the number "
            f"out (nearest valid: {len(names)})"
        )
    rng = _rng(seed, "shuffle")
    held = {name: rng.permutation(rows[groups[rows] == name]) for name in names}
    if test is not None:
        test_groups, all_rows = _groups(test, column), np.arange(len(test))
        return held, {name: all_rows[test_groups == name] for name in names}, all_rows
    tests: dict[str, Array] = {}
    targets, rng = train.targets.numpy(), _rng(seed, "test")
    for name in names:
        count = min(_fraction(len(held[name]), test_fraction), len(held[name]) - 1)
        tests[name] = _stratified(targets, held[name], count, rng)
        held[name] = held[name][~np.isin(held[name], tests[name])]
    return held, tests, np.sort(np.concatenate(list(tests.values())))


def _groups(data: Dataset, column: object) -> np.ndarray[Any, Any]:
    if data.groups is None:
        raise SettingError(
            f'partition.by = "natural": {data.name!r} was loaded without natural ids; of a table, name their column'
            " (partition.column); arrays and what a function returns have them under the name 'groups': {\"x\": ...,"
            ' "y": ..., "groups": ...}'
        )
    if data.group_column is not None and column != data.group_column:
        raise SettingError(f"partition.column = {shown(column)}: {unknown('column', column, [data.group_column])}")
    return np.asarray(data.groups)


def _stratified(targets: Array, rows: Array, count: int, rng: np.random.Generator) -> Array:
    """Some `count` of the rows at random, each class in proportion."""
    if count == 0:
        return rows[:0]
    classes, sizes = np.unique(targets[rows], return_counts=True)
    taken = apportion(count, sizes, rng)
    return np.sort(
        np.concatenate(
            [rng.permutation(rows[targets[rows] == label])[:size] for label, size in zip(classes, taken, strict=True)]
        )
    )


def _fraction(count: int, fraction: float) -> int:
    return round(count * fraction)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    """One generator a purpose, so that a larger validation set moves nothing but itself."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def _view(data: Dataset, rows: Array) -> Examples:
    return Examples(data, torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)))


def _check_same(train: Dataset, test: Dataset) -> None:
    if train.spec != test.spec:
        raise InputError(f"train and test of {train.name!r} differ: {train.spec} and {test.spec}")
    if train.label_names != test.label_names:
        raise InputError(
            f"train and test of {train.name!r} name their classes differently: {train.label_names} and "
            f"{test.label_names}"
        )
