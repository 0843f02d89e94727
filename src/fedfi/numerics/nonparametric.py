r"""Matching units to a growing set of global ones: maximum a posteriori of a Beta-Bernoulli process (PFNM).

Shape convention: K sets of units `[U, D]`, precisions `[D]` of each set; J global units.

A global unit is a Gaussian N(0, sigma0^2) drawn once; a matched unit is it plus noise N(0, sigma^2 / precision). With
natural parameters eta = precision w / sigma^2 and s = precision / sigma^2, prior 1 / sigma0^2, the gains are

    existing:  sum (eta_i + eta_j)^2 / (s_i + s_j) - sum eta_i^2 / s_i + log(c_i / (K - c_i)),   c_i at most 10
    the t-th new:  sum eta_j^2 / (1 / sigma0^2 + s_j) - 2 log t + 2 log(gamma / K)

(Yurochkin et al., ICML 2019, arXiv:1905.12022, Eqs. 6-9 and the authors' program, from which the cap of 10 and the
factors 2 are). One set is assigned at a time, exactly, with the others fixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["Matched", "match_units"]

_CAP = 10


@dataclass(frozen=True, eq=False)
class Matched:
    """What matching came to.

    Attributes:
        assignments: For each set the global unit of each of its units, `[U]`.
        centres: Posterior means of the global units, `[J, D]`, float64.
        counts: Sets that hold each global unit, `[J]`.
    """

    assignments: list[Tensor]
    centres: Tensor
    counts: Tensor


def match_units(
    values: Sequence[Tensor],
    precisions: Sequence[Tensor],
    *,
    rng: torch.Generator,
    gamma: float = 7.0,
    sigma: float = 1.0,
    sigma0: float = 1.0,
    sweeps: int = 5,
) -> Matched:
    """Matches K sets of units; the first is the beginning of the global one.

    Args:
        values: K tensors `[U, D]`.
        precisions: K tensors `[D]`, positive: how sure each coordinate is, relative to 1 / sigma^2.
        rng: Draws the order of sets in each sweep.
        gamma: Mass of the process; larger means more global units.
        sigma: Standard deviation of a unit around its global one.
        sigma0: Standard deviation of global units.
        sweeps: How often every set is taken out and matched anew.

    Raises:
        ValueError: For no sets, shapes that do not fit, or parameters that are not positive.
    """
    if not values or len(values) != len(precisions) or min(gamma, sigma, sigma0) <= 0:
        raise ValueError(f"{len(values)} sets, gamma {gamma}, sigma {sigma}, sigma0 {sigma0}; expected positive ones")
    if any(v.ndim != 2 or v.shape[1:] != p.shape for v, p in zip(values, precisions, strict=True)):
        raise ValueError("expected sets [U, D] with precisions [D]")
    state = _Global(values, precisions, gamma, sigma, sigma0)
    for k in range(len(values)):
        state.match(k)
    for _ in range(sweeps if len(values) > 1 else 0):
        for k in torch.randperm(len(values), generator=rng).tolist():
            state.remove(k)
            state.match(k)
    return state.result()


class _Global:
    """Sums of natural parameters of the global units, and who holds them."""

    def __init__(
        self, values: Sequence[Tensor], precisions: Sequence[Tensor], gamma: float, sigma: float, sigma0: float
    ) -> None:
        width = values[0].shape[1]
        self.s = [p.double() / sigma**2 for p in precisions]
        self.eta = [v.double() * s for v, s in zip(values, self.s, strict=True)]
        self.prior, self.gamma = 1 / sigma0**2, gamma
        self.sum_eta = torch.zeros(0, width, dtype=torch.float64)
        self.sum_s = torch.zeros(0, width, dtype=torch.float64)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.found: list[Tensor] = [torch.zeros(0, dtype=torch.int64) for _ in values]

    def match(self, k: int) -> None:
        eta, s, sets = self.eta[k], self.s[k], len(self.eta)
        units, held = len(eta), len(self.counts)
        # (eta_i + eta_j)^2 / (s_i + s_j) as products: [U, J]
        inverse = 1 / (self.sum_s + s)
        joined = eta.square() @ inverse.T + 2 * eta @ (self.sum_eta * inverse).T
        gain = joined + ((self.sum_eta.square() * inverse) - self.sum_eta.square() / self.sum_s).sum(1)
        counts = self.counts.clamp(max=min(_CAP, max(sets - 1, 1))).double()
        gain = gain + (counts / (sets - counts).clamp(min=1e-9)).log()
        new = (eta.square() / (self.prior + s)).sum(1, keepdim=True)
        numbers = torch.arange(1, units + 1, dtype=torch.float64)
        new = new - 2 * numbers.log() + 2 * torch.tensor(self.gamma / sets, dtype=torch.float64).log()
        _, columns = linear_sum_assignment(-torch.cat([gain, new], 1).numpy())
        places = torch.from_numpy(columns).to(torch.int64)
        fresh = places >= held
        places[fresh] = held + torch.arange(int(fresh.sum()))  # the order among new ones says nothing
        more = int(fresh.sum())
        self.sum_eta = torch.cat([self.sum_eta, torch.zeros(more, eta.shape[1], dtype=torch.float64)])
        self.sum_s = torch.cat([self.sum_s, torch.full((more, eta.shape[1]), self.prior, dtype=torch.float64)])
        self.counts = torch.cat([self.counts, torch.zeros(more, dtype=torch.int64)])
        self.sum_eta[places] += eta
        self.sum_s[places] += s
        self.counts[places] += 1
        self.found[k] = places

    def remove(self, k: int) -> None:
        places = self.found[k]
        self.sum_eta[places] -= self.eta[k]
        self.sum_s[places] -= self.s[k]
        self.counts[places] -= 1
        kept = self.counts > 0
        moved = kept.cumsum(0) - 1
        self.found = [f if i == k else moved[f] for i, f in enumerate(self.found)]
        self.sum_eta, self.sum_s, self.counts = self.sum_eta[kept], self.sum_s[kept], self.counts[kept]

    def result(self) -> Matched:
        return Matched(self.found, self.sum_eta / self.sum_s, self.counts)
