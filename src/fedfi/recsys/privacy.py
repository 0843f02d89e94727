"""Local differential privacy of item tables: what a client sends is clipped and noisy before it leaves.

A release is min(1, C / ||update||_F) * update + N(0, (sigma C)^2), where the update is taken against the newest mean.
It is all that leaves: a training loss, which a client reports otherwise, would be a second, noiseless look at its data.
Any two updates of norm up to C are at most 2 C apart, whatever the client's data, so a release is a Gaussian mechanism
of noise multiplier sigma / 2 for local differential privacy. The mechanism of k releases is the same as that of one
with sigma / sqrt(k) (Dong, Roth and Su, Gaussian Differential Privacy, JRSS-B 2022, Corollary 3.3), so the
composition is exact: no bound is lost. Averaging on the server is post-processing.

With `source = "keyed"` noise is a function of the run's seed, as everything here, so whoever knows the seed can take it
off again: for experiments. `source = "system"` draws it from the system; such a run cannot be repeated to the bit.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.privacy.noise import clipped, perturbed

Source = Literal["keyed", "system"]


@dataclass(frozen=True)
class Release:
    """How an upload is made private.

    Attributes:
        clip: Largest Frobenius norm C of an update.
        noise: Noise multiplier sigma; its standard deviation is sigma * C in each entry.
        delta: Of the (epsilon, delta) that is reported.
        source: Where noise comes from: the run's seed, or the system.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    source: Source = "keyed"

    def of(self, table: Tensor, reference: Tensor, rng: torch.Generator) -> Tensor:
        """The private update `[items, d]` of a table against a reference."""
        if self.source == "system":
            rng = torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        update = clipped({"items": table - reference}, self.clip)
        return perturbed(update, self.noise * self.clip, rng)["items"]

    def spent(self, releases: int) -> dict[str, float]:
        """What a client that has sent so many tables has given away, as numbers of a round."""
        found = {"privacy/releases": float(releases), "privacy/delta": self.delta}
        return found | {"privacy/epsilon": epsilon(self.noise, releases, self.delta)}


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
