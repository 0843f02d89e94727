"""Clipping and Gaussian noise on a set of tensors as on one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

_SIGMAS = 6.5
"""Of a Gaussian, one value in 10^10 is farther out: once in a hundred rounds of ten clients with ten million values."""


@dataclass(frozen=True)
class Spread:
    """What noise does to an entry of what a client sends.

    Attributes:
        deviation: Its standard deviation.
        reach: How far out it is at most, but for one value in 10^10.
        most: The largest magnitude of what it is put on; None where nothing bounds that.
    """

    deviation: float
    reach: float
    most: float | None = None

    @staticmethod
    def gaussian(deviation: float, most: float | None = None) -> Spread:
        """That of Gaussian noise."""
        return Spread(deviation, _SIGMAS * deviation, most)


@runtime_checkable
class Perturbs(Protocol):
    """A method whose clients put noise on what they send."""

    def spread(self, clients: int) -> Spread:
        """That of the noise which each of so many clients puts on an entry."""
        ...


def norm(tensors: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all entries together."""
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


def clipped(tensors: Mapping[str, Tensor], most: float) -> dict[str, Tensor]:
    """The tensors, scaled down together so that their norm is at most `most`."""
    size = norm(tensors)
    # one part in a million less, so that float32 rounding cannot leave the ball
    return dict(tensors) if size <= most else {n: t * (most / size * (1 - 1e-6)) for n, t in tensors.items()}


def perturbed(tensors: Mapping[str, Tensor], deviation: float, rng: torch.Generator) -> dict[str, Tensor]:
    """The tensors with independent Gaussian noise of a standard deviation on every entry."""
    return {n: t + torch.randn(t.shape, generator=rng, dtype=t.dtype) * deviation for n, t in tensors.items()}
