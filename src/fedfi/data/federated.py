"""Clients with their own training and test examples, and proof that none is in two places."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedfi.arguments import Named, expect
from fedfi.data.dataset import Dataset, Examples
from fedfi.data.inputs import Inputs
from fedfi.errors import InputError
from fedfi.models.shapes import InputSpec


@dataclass(frozen=True, eq=False)
class ClientData(metaclass=Named):
    """What one client holds.

    Attributes:
        train: Examples it trains on, never empty when `federate` made it.
        test: Its share of the global test set, distributed as `train` is; may be empty for a small client.
    """

    train: Examples
    test: Examples

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            _check_examples(f"ClientData: {name}", getattr(self, name))


@dataclass(frozen=True, eq=False)
class FederatedData(metaclass=Named):
    """All examples of a federation.

    Attributes:
        clients: By id, in order: ``"0"``, ``"1"``, ... or natural names.
        test: The global test set.
        validation: Examples kept at the server, or None.
        spec: What a model is fed.
        name: Name of the data set.
        origin: Where train, test and validation came from.
        partition: How clients were filled.
        seed: Seed of the split.
    """

    clients: Mapping[str, ClientData]
    test: Examples
    validation: Examples | None
    spec: InputSpec
    name: str = "data"
    origin: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None

    kind: ClassVar[str] = "examples"

    def __post_init__(self) -> None:
        such = "clients' data by name, such as {'a': fedfi.ClientData(train, test)}"
        expect("FederatedData: clients", self.clients, Mapping, such)
        for client, data in self.clients.items():
            expect("FederatedData: the name of a client", client, str, "a text")
            expect(f"FederatedData: client {client!r}", data, ClientData, "a fedfi.ClientData(train, test)")
        _check_examples("FederatedData: test", self.test)
        if self.validation is not None:
            _check_examples("FederatedData: validation", self.validation)
        expect("FederatedData: spec", self.spec, InputSpec, "a fedfi.InputSpec, such as the spec of a data set")

    def __repr__(self) -> str:
        held = 0 if self.validation is None else len(self.validation)
        train = sum(len(client.train) for client in self.clients.values())
        return (
            f"FederatedData({self.name!r}, {len(self.clients)} clients, {train} training, {len(self.test)} test and"
            f" {held} validation examples)"
        )

    def check(self) -> None:
        """Checks that there are clients, and that no example is in two of train, validation and test.

        Raises:
            InputError: If there are none, or an example is, naming both places and how many.
        """
        if not self.clients:
            raise InputError(f"{self.name!r} has no clients, expected at least one fedfi.ClientData by name")
        train = [(f"train of client {client!r}", data.train) for client, data in self.clients.items()]
        if self.validation is not None:
            train.append(("validation", self.validation))
        check_disjoint([*train, ("test", self.test)])
        tests = [(f"test of client {client!r}", data.test) for client, data in self.clients.items()]
        check_disjoint([*train, *tests])

    def inputs_record(self) -> dict[str, Any]:
        """How a new row becomes a model's input, for ``inputs.json``: as one of the test set does."""
        return Inputs.of(self.test.dataset).record()

    def split_record(self) -> dict[str, Any]:
        """Who holds which examples, for ``split.json``; the split is checked first.

        Returns:
            JSON-able: `name`, `origin`, `partition`, `seed`, `labels` (of the classes, where they have names), and
            for `test`, `validation` (or None) and the train and test of each of `clients` a record of `size`,
            `class_counts` ``[classes]``, `hash` (blake2b of the indices as little-endian int64) and `indices`.
            Indices count within the file that `origin` names.
        """
        self.check()
        return {
            "name": self.name,
            "origin": dict(self.origin),
            "partition": dict(self.partition),
            "seed": self.seed,
            **({"labels": list(map(str, self.test.dataset.label_names))} if self.test.dataset.label_names else {}),
            "clients": {
                client: {"train": _record(data.train), "test": _record(data.test)}
                for client, data in self.clients.items()
            },
            "test": _record(self.test),
            "validation": None if self.validation is None else _record(self.validation),
        }


def check_disjoint(parts: Iterable[tuple[str, Examples]] | Mapping[str, Examples]) -> None:
    """Checks that no example is held twice, within a part or by two of them.

    Parts of different data sets never overlap; data sets are the same where they share their inputs.

    Args:
        parts: Names and views.

    Raises:
        InputError: If two parts overlap, naming them and how many examples they share.
    """
    pairs = list(parts.items() if isinstance(parts, Mapping) else parts)
    owners: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    for number, (name, part) in enumerate(pairs):
        inputs = part.dataset.inputs
        key = (inputs.data_ptr(), tuple(inputs.shape))
        if key not in owners:
            owners[key] = torch.full((len(inputs),), -1, dtype=torch.int64)
        owner = owners[key]
        before = owner[part.indices]
        taken = before[before >= 0]
        if len(taken):
            other, count = Counter(taken.tolist()).most_common(1)[0]
            raise InputError(f"{pairs[other][0]} and {name} of {part.dataset.name!r} share {count} examples")
        twice = len(part) - len(part.indices.unique())
        if twice:
            raise InputError(f"{name} of {part.dataset.name!r} holds {twice} examples twice")
        owner[part.indices] = number


def _check_examples(what: str, value: object) -> None:
    such = "give its .examples()" if isinstance(value, Dataset) else "such as data.examples(indices) of a data set"
    expect(what, value, Examples, f"fedfi.Examples; {such}")


def _record(part: Examples) -> dict[str, Any]:
    raw = part.indices.numpy().astype("<i8").tobytes()
    return {
        "size": len(part),
        "class_counts": part.class_counts().tolist(),
        "hash": hashlib.blake2b(raw, digest_size=16).hexdigest(),
        "indices": part.indices.tolist(),
    }
