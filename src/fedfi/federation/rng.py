"""Keyed randomness: every draw comes from a generator that is a function of (seed, round, client, purpose).

No generator is carried from one place to another, so neither the order of execution, nor the number of workers,
nor a resume changes a single bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch


def key(seed: int, *parts: int | str) -> int:
    """A 32-bit number that depends on every part and on their order.

    Torch's CPU generator takes 32 bits of seed, hence the width: two of a million streams coincide with a
    probability of about one in 4,300 each, which correlates two unrelated draws and breaks nothing.
    """
    text = "\x1f".join([str(seed), *(f"{type(p).__name__}:{p}" for p in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def word_key(seed: int, *parts: int | str) -> int:
    """As `key`, a 64-bit number: the key of a counter-based stream (`fedfi.numerics.counter`)."""
    text = "\x1f".join([str(seed), *(f"{type(p).__name__}:{p}" for p in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def keyed_generator(seed: int, *parts: int | str) -> torch.Generator:
    """A CPU generator for the given key."""
    return torch.Generator().manual_seed(key(seed, *parts))


@contextmanager
def keyed_global_rng(seed: int, *parts: int | str) -> Iterator[None]:
    """Lends torch's global generators a key (initialisers and dropout draw from them), then gives the CPU's back."""
    state = torch.get_rng_state()
    _seed_global()(key(seed, *parts))
    try:
        yield
    finally:
        torch.set_rng_state(state)


@cache
def _seed_global() -> Callable[[int], object]:
    """`torch.manual_seed` for all devices; without an accelerator its CPU part alone, a hundred times faster."""
    return torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
