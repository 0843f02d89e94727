"""Federations: nothing in two places, tests distributed as training data, statistics from training rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfi.data import ClientData, Dataset, FederatedData, federate, load
from fedfi.data.federated import check_disjoint
from fedfi.errors import InputError
from fedfi.models.shapes import InputSpec

DIRICHLET = {"by": "dirichlet", "alpha": 0.3}
NATURAL = {"by": "natural", "column": "hospital"}


def data(n: int = 600, classes: int = 4, name: str = "toy", groups: int = 0) -> Dataset:
    """Sorted by class; one feature that is the row number."""
    return Dataset(
        torch.arange(n, dtype=torch.float32)[:, None],
        torch.arange(n) * classes // n,
        InputSpec("tabular", (1,), classes),
        name=name,
        groups=tuple(f"h{i % groups}" for i in range(n)) if groups else None,
        group_column="hospital" if groups else None,
    )


def split(train: Dataset, test: Dataset | None = None, **changes: Any) -> FederatedData:
    settings: dict[str, Any] = {"clients": 8, "partition": DIRICHLET, "validation": 40, "seed": 1}
    return federate(train, test, **(settings | changes))


def rows(federation: FederatedData) -> tuple[set[int], set[int], set[int]]:
    train = {int(i) for client in federation.clients.values() for i in client.train.indices}
    validation = federation.validation
    return (
        train,
        set(validation.indices.tolist() if validation else []),
        set(federation.test.indices.tolist()),
    )


@pytest.mark.parametrize("partition", [{"by": "iid"}, DIRICHLET, {"by": "natural", "column": "hospital"}], ids=str)
def test_carved_sets_are_disjoint_complete_and_in_proportion(partition: Mapping[str, Any]) -> None:
    clients = None if partition["by"] == "natural" else 8
    federation = split(data(groups=5), clients=clients, partition=partition)
    train, validation, test = rows(federation)
    assert train | validation | test == set(range(600))
    assert len(train) + len(validation) + len(test) == 600
    assert len(validation) == 40
    assert federation.validation is not None
    assert federation.validation.class_counts().tolist() == [10] * 4
    assert len(test) == pytest.approx(112, abs=2)
    held = np.concatenate([client.test.indices for client in federation.clients.values()])
    assert sorted(held.tolist()) == sorted(test)


def test_client_tests_follow_the_clients_training_classes() -> None:
    """Class c: m_c test examples in proportion to the clients' n_kc, each share within one of exact."""
    federation = split(data(2000), data(400), clients=7)
    train = torch.stack([client.train.class_counts() for client in federation.clients.values()]).double()
    test = torch.stack([client.test.class_counts() for client in federation.clients.values()]).double()
    assert len(federation.test) == 400
    assert test.sum(0).tolist() == [100] * 4
    assert ((test - 100 * train / train.sum(0)).abs() < 1).all()
    assert federation.origin["test"] == "official"


def test_equal_clients_share_leftover_test_examples_evenly() -> None:
    """40 clients, 4 classes of 30 test examples: ties go at random, not to the first thirty each time."""
    federation = split(data(1600), data(120), clients=40, partition={"by": "iid"}, validation=0)
    late = sum(len(federation.clients[str(k)].test) for k in range(20, 40))
    assert 30 < late < 90


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 1000), validation=st.integers(0, 100), clients=st.integers(1, 12))
def test_any_split_is_disjoint_and_reproducible(seed: int, validation: int, clients: int) -> None:
    options = {"seed": seed, "validation": validation, "clients": clients, "partition": {"by": "iid"}}
    first = split(data(), **options).split_record()
    torch.manual_seed(seed + 1)
    assert split(data(), **options).split_record() == first
    assert (first["validation"] is None) == (validation == 0)


def test_statistics_come_from_training_rows_alone() -> None:
    federation = split(data())
    train = torch.tensor(sorted(rows(federation)[0]), dtype=torch.float64)
    for view in (federation.test, federation.validation, federation.clients["0"].train):
        assert view is not None
        assert view.dataset.mean is not None
        assert view.dataset.std is not None
        assert view.dataset.mean.item() == pytest.approx(train.mean().item())
        assert view.dataset.std.item() == pytest.approx(train.std(correction=0).item())
    official = split(data(), data(100))
    assert official.test.dataset.mean is official.clients["0"].train.dataset.mean
    assert data().mean is None


def test_given_statistics_are_kept() -> None:
    fitted = data().fitted(torch.arange(3))
    assert split(fitted).test.dataset.mean is fitted.mean


def test_natural_clients_hold_their_group() -> None:
    train = data(groups=3)
    federation = split(train, clients=None, partition={"by": "natural"})
    assert list(federation.clients) == ["h0", "h1", "h2"]
    assert train.groups is not None
    for name, client in federation.clients.items():
        for part in (client.train, client.test):
            assert {train.groups[i] for i in part.indices.tolist()} == {name}
        assert len(client.test) == round(0.2 * (len(client.train) + len(client.test)))
    official = split(train, data(60, groups=2), clients=3, partition={"by": "natural"})
    assert [len(client.test) for client in official.clients.values()] == [30, 30, 0]
    assert len(official.test) == 60


def test_natural_keeps_a_training_example_of_the_smallest_client() -> None:
    train = Dataset(
        torch.zeros(5, 1),
        torch.tensor([0, 1, 0, 1, 0]),
        InputSpec("tabular", (1,), 2),
        groups=("a", "a", "a", "a", "b"),
        group_column="who",
    )
    federation = split(train, clients=None, partition={"by": "natural"}, validation=0, test_fraction=0.9)
    assert [(len(c.train), len(c.test)) for c in federation.clients.values()] == [(1, 3), (1, 0)]


def test_record_is_json_and_says_who_holds_what() -> None:
    record = json.loads(json.dumps(split(data()).split_record()))
    client = record["clients"]["3"]["train"]
    assert client["size"] == len(client["indices"]) == sum(client["class_counts"])
    assert len(client["hash"]) == 32
    assert client["hash"] != record["clients"]["4"]["train"]["hash"]
    assert record["partition"] == DIRICHLET
    assert record["origin"] == {
        "train": "train",
        "test": "carved out of train",
        "validation": "cut out of train",
    }


def test_overlaps_are_named_and_counted() -> None:
    toy = data()
    a, b = toy.examples(torch.arange(10)), toy.examples(torch.arange(7, 20))
    with pytest.raises(InputError, match="one and two of 'toy' share 3 examples"):
        check_disjoint({"one": a, "two": b})
    with pytest.raises(InputError, match="one of 'toy' holds 1 examples twice"):
        check_disjoint({"one": toy.examples(torch.tensor([1, 1]))})
    check_disjoint({"one": a, "two": data().examples(torch.arange(10))})  # another data set
    c = toy.examples(torch.arange(30, 40))
    wrong = FederatedData({"0": ClientData(a, c), "1": ClientData(c, b)}, b, None, toy.spec)
    with pytest.raises(InputError, match="train of client '0' and test of 'toy' share 3 examples"):
        wrong.split_record()
    wrong = FederatedData({"0": ClientData(a, c), "1": ClientData(c, c)}, c.subset(torch.arange(0)), None, toy.spec)
    with pytest.raises(InputError, match="train of client '1' and test of client '0'"):
        wrong.check()
    with pytest.raises(InputError, match="share"):
        split(toy, toy)  # the same examples as train and test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": {"by": "naturl"}}, "did you mean 'natural'"),
        ({"partition": {"by": "natural"}}, "loaded without natural ids; of a table, name their column"),
        ({"validation": 600}, r"validation = 600: 'toy' has only 600 examples \(nearest valid: 599\)"),
        ({"validation": -1}, r"validation = -1: must be at least 0 \(nearest valid: 0\)"),
        ({"validation": 1.5}, r"validation = 1\.5: must be a whole number"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"test_fraction": 1.0}, r"test_fraction = 1\.0: must lie between 0 and 1"),
        ({"test_fraction": 1e-9}, "leaves no test example of 560; raise it"),
        ({"test_fraction": 0.9999}, "leaves no training example of 560; lower it"),
        ({"clients": 500}, r"clients = 500: there are only 448 training examples to divide \(nearest valid: 448\)"),
        ({"clients": None}, "clients: is missing, such as clients = 10; .* needs the number of clients"),
        ({"partition": {"by": "dirichlet", "alfa": 1}}, r"partition\.alfa: unknown key; did you mean 'alpha'\?$"),
        (
            {"partition": {"by": "dirichlet", "alfa": 1, "zzz": 2}},
            r"partition\.alfa: unknown key; did you mean 'alpha'\? \(and 1 more error\)$",
        ),
        ({"test": data(classes=5)}, "train and test of 'toy' differ"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split(data(), **changes)


def test_wrong_columns() -> None:
    with pytest.raises(InputError, match="unknown column 'hospitl'; did you mean 'hospital'"):
        split(data(groups=3), partition={"by": "natural", "column": "hospitl"})
    with pytest.raises(InputError, match=r"clients = 8: column 'hospital' of 'toy' names 3 clients.*nearest valid: 3"):
        split(data(groups=3), partition={"by": "natural"})


def test_no_output_and_no_lasting_change(capfd: pytest.CaptureFixture[str]) -> None:
    import datasets

    bars = datasets.is_progress_bar_enabled()
    split(load("digits")[0], clients=20)
    assert datasets.is_progress_bar_enabled() == bars
    assert capfd.readouterr() == ("", "")
