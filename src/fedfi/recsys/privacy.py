"""Local differential privacy of item tables: what a client sends is clipped and noisy before it leaves.

A release is min(1, C / ||update||_F) * update + N(0, (sigma C)^2), where the update is taken against the newest mean.
Any two updates of norm up to C are at most 2 C apart, whatever the client's data, so a release is a Gaussian mechanism
of noise multiplier sigma / 2 for local differential privacy. The mechanism of k releases is the same as that of one
with sigma / sqrt(k) (Dong, Roth and Su, Gaussian Differential Privacy, JRSS-B 2022, Corollary 3.3), so the
composition is exact: no bound is lost. Averaging on the server is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfi.errors import InputError


@dataclass(frozen=True)
class Release:
    """How an upload is made private.

    Attributes:
        clip: Largest Frobenius norm C of an update.
        noise: Noise multiplier sigma; its standard deviation is sigma * C in each entry.
    """

    clip: float
    noise: float

    def of(self, table: Tensor, reference: Tensor, rng: torch.Generator) -> Tensor:
        """The private update `[items, d]` of a table against a reference."""
        update = table - reference
        update = update * min(1.0, self.clip / max(float(update.norm()), 1e-12))
        return update + torch.randn(update.shape, generator=rng) * (self.noise * self.clip)


def epsilon(noise: float, releases: int, delta: float) -> float:
    """The epsilon of local (epsilon, delta) differential privacy after some releases.

    Solves Theorem 8 of Balle and Wang (Improving the Gaussian Mechanism, ICML 2018) for epsilon, with
    mu = 2 sqrt(releases) / noise:  delta = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu).

    Args:
        noise: Noise multiplier sigma of a release.
        releases: How many tables a client sends: rounds // interval with full participation.
        delta: In (0, 1).

    Raises:
        InputError: If a number is out of range.
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    if noise < 0 or releases < 0 or not 0 < delta < 1:
        raise InputError(f"noise = {noise}, releases = {releases}, delta = {delta}: expected >= 0, >= 0, in (0, 1)")
    if releases == 0:
        return 0.0
    if noise == 0:
        return math.inf
    mu = 2.0 * math.sqrt(releases) / noise

    def excess(value: float) -> float:
        first = math.exp(log_ndtr(mu / 2 - value / mu))
        return first - math.exp(value + log_ndtr(-mu / 2 - value / mu)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))
