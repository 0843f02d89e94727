"""What a client of a recommender trains on in one epoch: its positives in random order, each with drawn negatives.

A negative is drawn uniformly from the items that are not excluded, without a rejected draw: draw r counts the allowed
items, and the item is r plus the number of excluded items before it. So what is drawn depends on nothing but the key,
the training items and the excluded items: other items of a client cannot be felt.

Shapes: ``c`` clients in the index, ``n`` of them in a stream, ``e`` examples, ``p`` positives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedfi.numerics.counter import Ints, Words, below, words


@dataclass(frozen=True, eq=False)
class Interactions:
    """The training items of clients, and the items that may not be drawn as negatives, row after row.

    Attributes:
        positives: Training items, client after client, ``[sum]``.
        starts: Where the positives of each client begin, and the end, ``[c + 1]``.
        excluded: Items that are no negatives, sorted within a client, among them all its positives.
        excluded_starts: As `starts`.
        items: Number of items.
        per_positive: Negatives drawn for each positive.
    """

    positives: Ints
    starts: Ints
    excluded: Ints
    excluded_starts: Ints
    items: int
    per_positive: int

    @cached_property
    def counts(self) -> Ints:
        """Positives of each client ``[c]``."""
        return np.diff(self.starts)

    @cached_property
    def allowed(self) -> Ints:
        """Items of each client that may be drawn ``[c]``."""
        return self.items - np.diff(self.excluded_starts)

    @cached_property
    def gaps(self) -> Ints:
        """For each excluded item, row * (items + 1) + how many allowed items of its client lie before it."""
        sizes = np.diff(self.excluded_starts)
        rows = np.repeat(np.arange(len(sizes)), sizes)
        inside = np.arange(len(self.excluded)) - np.repeat(self.excluded_starts[:-1], sizes)
        return rows * (self.items + 1) + self.excluded - inside


@dataclass(frozen=True, eq=False)
class Stream:
    """The examples of one epoch of some clients, client after client, each positive before its negatives.

    Attributes:
        client: Which of the clients, ``[e]`` in ``0 .. n - 1``, rising.
        item: ``[e]``.
        label: 1 for a positive, 0 for a negative, ``[e]`` float32.
        place: Place within the client's epoch, from 0, ``[e]``.
        counts: Examples of each client ``[n]``.
    """

    client: Ints
    item: Ints
    label: np.ndarray[tuple[int], np.dtype[np.float32]]
    place: Ints
    counts: Ints


def stream(of: Interactions, rows: Ints, keys: Words) -> Stream:
    """One epoch of some clients.

    Args:
        of: Everyone's items.
        rows: Which clients, rows of `of`, ``[n]``.
        keys: The key of each client's draws ``[n]``; the same key gives the same epoch, alone or among others.
    """
    counts = of.counts[rows]
    total, number = int(counts.sum()), len(rows)
    client = np.repeat(np.arange(number), counts)
    first = np.concatenate([[0], np.cumsum(counts)])[:-1]
    inside = np.arange(total) - np.repeat(first, counts)
    own = keys[client]
    # Sorted by client, then by a random word; 2^-40 of ties, which keep the order of the items.
    shuffled = np.argsort(
        (client.astype(np.uint64) << np.uint64(40)) | (words(own, inside) >> np.uint64(24)), kind="stable"
    )
    positives = of.positives[np.repeat(of.starts[rows], counts) + inside][shuffled]

    width = of.per_positive + 1
    item = np.empty((total, width), dtype=np.int64)
    item[:, 0] = positives
    counters = counts[client][:, None] + inside[:, None] * of.per_positive + np.arange(of.per_positive)
    row = np.repeat(np.repeat(rows, counts), of.per_positive)
    drawn = below(words(np.repeat(own, of.per_positive), counters.ravel()), of.allowed[row])
    skipped = np.searchsorted(of.gaps, row * (of.items + 1) + drawn, side="right") - of.excluded_starts[row]
    item[:, 1:] = (drawn + skipped).reshape(total, of.per_positive)

    label = np.zeros((total, width), dtype=np.float32)
    label[:, 0] = 1.0
    place = inside[:, None] * width + np.arange(width)
    return Stream(np.repeat(client, width), item.ravel(), label.ravel(), place.ravel(), counts * width)
