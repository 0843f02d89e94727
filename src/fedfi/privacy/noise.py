"""Clipping and Gaussian noise on a set of tensors as on one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


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
