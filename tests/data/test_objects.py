"""What users hold in Python, as data: lists, frames, torch's data sets; and what is said of the rest."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import fedfi

X = torch.arange(24.0).reshape(8, 3)
Y = torch.arange(8) % 2
PAIRS = TensorDataset(X, Y)
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y})


class Pictures(TorchDataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, position: int):
        return Image.fromarray(np.full((4, 5), position, dtype=np.uint8)), "ab"[position % 2]


class Tables(Pictures):
    def __getitem__(self, position: int):
        return {"x": position}


class Uneven(Pictures):
    def __getitem__(self, position: int):
        return torch.zeros(position + 1), 0


class Broken(Pictures):
    def __getitem__(self, position: int):
        return {}["missing"]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PAIRS)


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X, Y],
        (X.tolist(), Y.tolist()),
        (list(X), list(Y)),
        (X.numpy(), Y.tolist()),
        {"x": X.tolist(), "y": Y.tolist()},
        PAIRS,
        Subset(PAIRS, range(8)),
        list(PAIRS),
        list(Stream()),
        FRAME,
        (FRAME[["a", "b", "c"]], FRAME["label"]),
        (FRAME[["a", "b", "c"]], FRAME[["label"]]),
    ],
    ids=range(13),
)
def test_the_same_examples_in_many_forms(given) -> None:
    train, test = fedfi.load(given)
    assert test is None
    assert train.inputs.equal(X)
    assert train.targets.equal(Y)
    assert train.label_names == ("0", "1")


@pytest.mark.parametrize(
    "given",
    [
        ((X, Y), (X, Y)),
        [(X, Y), (X, Y)],
        ((X.tolist(), Y.tolist()), (X.tolist(), Y.tolist())),
        (PAIRS, Subset(PAIRS, range(8))),
        (FRAME, FRAME),
    ],
    ids=range(5),
)
def test_a_second_one_is_the_test_set(given) -> None:
    train, test = fedfi.load(given)
    assert test is not None
    assert train.inputs.equal(test.inputs)
    assert train.targets.equal(test.targets)


def test_two_rows_are_rows_and_not_inputs_and_targets() -> None:
    train, _ = fedfi.load(([[1.0, 2.0], [3.0, 4.0]], [0, 1]))
    assert train.inputs.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(fedfi.InputError, match="got a list of list, list"):
        fedfi.load([[1.0, 2.0], [3.0, 4.0]])


def test_pictures_keep_their_bytes_and_labels_their_names() -> None:
    train, _ = fedfi.load(Pictures())
    assert train.spec.shape == (1, 4, 5)
    assert train.inputs.dtype == torch.uint8
    assert train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert train.label_names == ("a", "b")


def test_columns_of_a_frame_are_named_as_those_of_a_file() -> None:
    renamed = FRAME.rename(columns={"label": "outcome"})
    train, _ = fedfi.load(renamed, label="outcome", group="c", columns=["a"])
    assert train.feature_names == ("a",)
    assert train.groups is not None
    with pytest.raises(fedfi.InputError, match="name the column of labels with the option 'label'"):
        fedfi.load(renamed)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (DataLoader(PAIRS), "load: got a DataLoader, expected what it reads from: give its .dataset"),
        (Tables(), r"load: example 0 of the Tables is a dict, expected \(x, y\)"),
        (Uneven(), r"load: examples of the Uneven are of 6 shapes, such as \[1\] and \[2\]; expected one"),
        (Broken(), r"example 0 of the Broken failed: KeyError: 'missing' \(test_objects.py, line \d+\)"),
        (Stream(), "got a Stream, which has no length; give list"),
        (Subset(PAIRS, []), "the Subset has no examples"),
        (([[1.0, 2.0], [3.0]], [0, 1]), "a list of 2 is no array: ValueError"),
        (X, "got a Tensor"),
        ((X, 3), "got a tuple of Tensor, int"),
        (3, "a data set is a name, a path, .*; got 3"),
        (None, "got None"),
        ((), "got a tuple"),
        ([], "got a list"),
    ],
)
def test_what_is_no_data_is_told_how_to_become_some(given, text: str) -> None:
    with pytest.raises(fedfi.InputError, match=text):
        fedfi.load(given)


def test_of_different_lengths() -> None:
    with pytest.raises(fedfi.InputError, match=r"^data 'arrays': 8 inputs, but 5 targets; expected one an input$"):
        fedfi.load((X, Y[:5]))


DATA = fedfi.load(PAIRS)[0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fedfi.Examples(DATA, [1, 2]), r"Examples: indices is a list, expected an int64 tensor \[m\]"),
        (lambda: fedfi.Examples(X, Y), "Examples: dataset is a Tensor, expected a fedfi.Dataset"),
        (lambda: fedfi.ClientData(DATA, DATA), "ClientData: train is a Dataset, expected .*; give its .examples()"),
        (lambda: fedfi.ClientData(DATA.examples()), "ClientData: test is missing"),
        (
            lambda: fedfi.FederatedData({"a": DATA}, DATA.examples(), None, DATA.spec),
            r"FederatedData: client 'a' is a Dataset, expected a fedfi.ClientData\(train, test\)",
        ),
        (
            lambda: fedfi.FederatedData([DATA], DATA.examples(), None, DATA.spec),
            "FederatedData: clients is a list, expected clients' data by name",
        ),
        (
            lambda: fedfi.FederatedData({}, DATA, None, DATA.spec),
            "FederatedData: test is a Dataset, expected fedfi.Examples; give its .examples()",
        ),
        (lambda: fedfi.FederatedData({}, DATA.examples(), None, DATA.spec).check(), "'data' has no clients"),
        (
            lambda: fedfi.Dataset(X.numpy(), Y, DATA.spec),
            r"inputs is a ndarray, expected a tensor; fedfi.load\(\(x, y",
        ),
        (lambda: fedfi.Dataset(X, Y, (3,)), "spec is a tuple, expected a fedfi.InputSpec"),
        (lambda: fedfi.federate(X, clients=3), "federate: train is a Tensor, expected a fedfi.Dataset"),
        (lambda: fedfi.federate(DATA, client=3), "federate: unknown argument 'client'; did you mean 'clients'"),
    ],
)
def test_other_objects_than_expected(make, text: str) -> None:
    with pytest.raises(fedfi.InputError, match=text):
        make()


def test_no_example_is_trained_on_and_judged_by_one_client() -> None:
    half = DATA.examples(torch.arange(4))
    both = fedfi.FederatedData({"a": fedfi.ClientData(half, half)}, DATA.examples(torch.tensor([7])), None, DATA.spec)
    with pytest.raises(
        fedfi.InputError, match="train of client 'a' and test of client 'a' of 'arrays' share 4 examples"
    ):
        both.check()
