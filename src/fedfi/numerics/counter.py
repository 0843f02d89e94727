"""Counter-based random words: the n-th word of a key is a function of both, so that thousands of streams, one a
client, are drawn in one operation, and the same for one client alone.

The function is SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): word
n of key k is the mix of k + (n + 1) * golden ratio. Shapes: ``n`` keys, ``e`` words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def words(keys: Words, counters: Ints) -> Words:
    """The words at some places of some streams.

    Args:
        keys: ``[e]``, the stream of each word.
        counters: ``[e]``, the place of each word in its stream, from 0.

    Returns:
        ``[e]``.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        x = keys + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def uniform(drawn: Words) -> Floats:
    """Numbers ``[e]`` in [0, 1), of the upper 53 bits of each word."""
    return np.asarray((drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def below(drawn: Words, bounds: Ints) -> Ints:
    """Whole numbers ``[e]`` from 0 to below `bounds` ``[e]``, each at least 1.

    A product in float64 is exact to 2^-53, so the chance of a number is off by no more than bounds * 2^-53.
    """
    return (uniform(drawn) * bounds).astype(np.int64)


def normal(keys: Words, counters: Ints) -> Floats:
    """Standard normal numbers ``[e]`` by the method of Box and Muller, of words 2 n and 2 n + 1 of a stream."""
    first, second = uniform(words(keys, 2 * counters)), uniform(words(keys, 2 * counters + 1))
    return np.asarray(np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second))
