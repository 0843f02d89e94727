"""Clients with interactions instead of examples: what each user trains on, and the items held out for judging.

Who rated an item is positive to it, whatever the rating. A user's last item is held out for the test, the one before
it for validation (leave one out). Shapes: ``c`` clients, ``m`` items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from fedfi.data.negatives import Interactions
from fedfi.errors import InputError
from fedfi.models.shapes import InputSpec
from fedfi.numerics.counter import Ints

Negatives = Literal["exclude_train", "exclude_all"]


@dataclass(frozen=True, eq=False)
class ClientRatings:
    """What one user holds.

    Attributes:
        interactions: Its training items and what may be drawn as a negative: one row.
        validation: The item held out for validation.
        test: The item held out for the test.
    """

    interactions: Interactions
    validation: int
    test: int

    @property
    def train(self) -> Ints:
        """Training items, sorted."""
        return self.interactions.positives


@dataclass(frozen=True, eq=False)
class RatingsData:
    """All interactions of a federation of users.

    Attributes:
        users: Names of the clients, in order.
        items: Names of the items, in order.
        train: Training items of each client, each sorted.
        validation: Held-out items ``[c]``.
        test: Held-out items ``[c]``.
        negatives: What a negative may not be: an item of the training set (`exclude_train`), or of any of the
            client's items, held-out ones too (`exclude_all`). The latter is what much of the literature does; it
            tells the training which items are held out.
        per_positive: Negatives drawn for each positive, anew each epoch.
        name: Name of the data set.
        origin: Where it came from and how it was split.
        warnings: What a reader of results should know of the split.
        elsewhere: Whether users keep their interactions to themselves: here are their names and the items alone, and
            `train`, `validation` and `test` say nothing.
    """

    users: tuple[str, ...]
    items: tuple[str, ...]
    train: tuple[Ints, ...]
    validation: Ints
    test: Ints
    negatives: Negatives = "exclude_train"
    per_positive: int = 4
    name: str = "ratings"
    origin: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    elsewhere: bool = False

    kind: ClassVar[str] = "ratings"

    def __post_init__(self) -> None:
        self.check()

    @property
    def spec(self) -> InputSpec:
        """What a model is fed: item ids."""
        return InputSpec("ratings", (), len(self.items))

    @cached_property
    def interactions(self) -> Interactions:
        """Everyone's, a row a client."""
        positives, starts = _joined(self.train)
        if self.negatives == "exclude_train":
            return Interactions(positives, starts, positives, starts, len(self.items), self.per_positive)
        held = np.stack([self.validation, self.test], 1)
        everything = [np.sort(np.concatenate([t, h])) for t, h in zip(self.train, held, strict=True)]
        return Interactions(positives, starts, *_joined(everything), len(self.items), self.per_positive)

    @cached_property
    def clients(self) -> Mapping[str, ClientRatings]:
        """What each user holds, by name, in order."""
        all_ = self.interactions
        found = {}
        for row, user in enumerate(self.users):
            own = self.train[row]
            excluded = all_.excluded[all_.excluded_starts[row] : all_.excluded_starts[row + 1]]
            alone = Interactions(
                own, np.array([0, len(own)]), excluded, np.array([0, len(excluded)]), all_.items, all_.per_positive
            )
            found[user] = ClientRatings(alone, int(self.validation[row]), int(self.test[row]))
        return found

    def without_interactions(self, users: Sequence[str]) -> RatingsData:
        """The same items for other users, whose interactions are not known here.

        Args:
            users: Their names.
        """
        nothing = np.zeros(len(users), dtype=np.int64)
        none = np.empty(0, dtype=np.int64)
        return replace(
            self,
            users=tuple(users),
            train=(none,) * len(users),
            validation=nothing,
            test=nothing,
            origin={"interactions": "each user's own"},
            warnings=(),
            elsewhere=True,
        )

    def with_items(self, items: Sequence[str]) -> RatingsData:
        """The same interactions among all items of a federation, of which the own ones are a part.

        Args:
            items: Names of all items, in order.

        Raises:
            InputError: If an own item is not among them.
        """
        place = {item: i for i, item in enumerate(items)}
        unknown_ = next((item for item in self.items if item not in place), None)
        if unknown_ is not None:
            raise InputError(f"data {self.name!r}: item {unknown_!r} is none of the federation's {len(items)} items")
        new = np.array([place[item] for item in self.items], dtype=np.int64)
        return replace(
            self,
            items=tuple(items),
            train=tuple(np.sort(new[own]) for own in self.train),
            validation=new[self.validation],
            test=new[self.test],
        )

    def held_out(self, split: Literal["validation", "test"]) -> Ints:
        """The held-out item of each client ``[c]``."""
        return self.validation if split == "validation" else self.test

    def check(self) -> None:
        """Checks that items exist, that no held-out item is trained on, and that every client can draw negatives.

        Raises:
            InputError: Naming the client.
        """
        users, count = self.users, len(self.items)
        if not users:
            raise InputError(f"data {self.name!r} has no users")
        if len(set(users)) < len(users):
            raise InputError(f"data {self.name!r}: a user is there twice")
        sizes = {len(self.train), len(self.validation), len(self.test)}
        if sizes != {len(users)}:
            raise InputError(f"data {self.name!r}: {len(users)} users, but train, validation, test of {sizes}")
        if self.per_positive < 1:
            raise InputError(f"negatives_per_positive = {self.per_positive}: must be at least 1 (nearest valid: 1)")
        if self.elsewhere:
            return
        for user, own, *held in zip(users, self.train, self.validation.tolist(), self.test.tolist(), strict=True):
            if len(own) == 0:
                raise InputError(f"data {self.name!r}: user {user!r} has no item to train on")
            if own[0] < 0 or own[-1] >= count or min(held) < 0 or max(held) >= count:
                raise InputError(f"data {self.name!r}: user {user!r} has an item outside 0 to {count - 1}")
            if (np.diff(own) <= 0).any():
                raise InputError(f"data {self.name!r}: the training items of user {user!r} are not sorted, or twice")
            if held[0] == held[1] or np.isin(held, own).any():
                raise InputError(f"data {self.name!r}: an item of user {user!r} is in two of train, validation, test")
            if len(own) + (2 if self.negatives == "exclude_all" else 0) >= count:
                raise InputError(f"data {self.name!r}: user {user!r} has all {count} items, so none is negative")

    def inputs_record(self) -> dict[str, Any] | None:
        """None: it is `fedfi recommend` that uses a run of ratings."""
        return None

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> RatingsData:
        """The data of which `split_record` made a record.

        Args:
            record: With the names of all items, of users whose interactions are known.

        Raises:
            InputError: If they do not fit each other.
            LookupError: If something is missing.
        """
        clients = record["clients"]
        held = {
            name: [np.array(own[name]["indices"], dtype=np.int64) for own in clients.values()]
            for name in ("train", "validation", "test")
        }
        return RatingsData(
            users=tuple(clients),
            items=tuple(record["items"]["names"]),
            train=tuple(held["train"]),
            validation=np.concatenate(held["validation"]),
            test=np.concatenate(held["test"]),
            negatives=record["negatives"]["from"],
            per_positive=record["negatives"]["per_positive"],
            name=record["name"],
            origin=record["origin"],
            warnings=tuple(record["warnings"]),
        )

    def split_record(self) -> dict[str, Any]:
        """Who holds which items, for ``split.json``, with the warnings."""
        rows = zip(self.users, self.train, self.validation, self.test, strict=True)
        return {
            "kind": self.kind,
            "name": self.name,
            "origin": dict(self.origin),
            "warnings": list(self.warnings),
            "items": {
                "size": len(self.items),
                "hash": _digest("\0".join(self.items).encode()),
                "names": list(self.items),
            },
            "negatives": {"from": self.negatives, "per_positive": self.per_positive},
            "clients": dict.fromkeys(self.users, "elsewhere")
            if self.elsewhere
            else {
                user: {
                    "train": _record(own),
                    "validation": _record(np.array([validation])),
                    "test": _record(np.array([test])),
                }
                for user, own, validation, test in rows
            },
            "test": _record(self.test),
            "validation": _record(self.validation),
        }


def _joined(parts: tuple[Ints, ...] | list[Ints]) -> tuple[Ints, Ints]:
    starts = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
    return np.concatenate(parts).astype(np.int64), starts


def _record(items: Ints) -> dict[str, Any]:
    return {"size": len(items), "hash": _digest(items.astype("<i8").tobytes()), "indices": items.tolist()}


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
