r"""Matching the units of several layers exactly, and the mean of what was matched.

Shape convention: U units (neurons, channels, heads) a layer, D coordinates a unit. An assignment is a permutation
`[U]`: entry i is the unit that is put at place i.

The objective is that of FedFiOT [1] for one layer: with weights f (Fisher information, damped) and a centre w,

    J(w, pi) = sum_k sum_i sum_c f_k[pi_k(i), c] (w[i, c] - w_k[pi_k(i), c])^2

Equal weights make it a Wasserstein barycentre of uniform measures with squared Euclidean cost [2].

[1] FedFiOT, arXiv:2611.06783.  [2] Akash, Li, Trillos, arXiv:2210.06671.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["Barycentre", "PreparedCosts", "assign", "assignment_costs", "barycentre", "objective", "weighted_mean"]


@dataclass(frozen=True, eq=False)
class PreparedCosts:
    """What costs to one set of units have in common, whatever they are compared with: one product a centre.

    Attributes:
        factors: `[2 D, U]` of float64: the weights over weights times values, transposed.
        constant: `[U]`: the sum over coordinates of weights times squared values.
    """

    factors: Tensor
    constant: Tensor

    @staticmethod
    def of(values: Tensor, weights: Tensor) -> "PreparedCosts":
        """Prepares costs to units `values` `[U, D]` with non-negative `weights` `[U, D]`.

        Raises:
            ValueError: for other shapes, or numbers that are not finite.
        """
        _check(values, weights)
        w, f = values.double(), weights.double()
        product = f * w
        return PreparedCosts(torch.cat([f, product], 1).T, (product * w).sum(1))

    def to(self, centre: Tensor) -> Tensor:
        """The costs `[U', U]` of putting each unit at each row of `centre` `[U', D]`."""
        w = centre.double()
        # (w_i - w_j)^2 f_j = w_i^2 f_j - 2 w_i (f_j w_j) + f_j w_j^2; rounding may leave a negative zero
        return (torch.cat([w.square(), w.mul(-2)], 1) @ self.factors).add_(self.constant).clamp_(min=0)


def assignment_costs(centre: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """C[i, j] = sum_c weights[j, c] (centre[i, c] - values[j, c])^2, by matrix products in float64.

    Args:
        centre: `[U', D]`.
        values: `[U, D]`.
        weights: `[U, D]`, non-negative.

    Returns:
        `[U', U]`, float64, on the inputs' device.

    Raises:
        ValueError: for shapes that do not fit, or numbers that are not finite.
    """
    if centre.ndim != 2 or values.ndim != 2 or centre.shape[1] != values.shape[1]:
        raise ValueError(
            f"centre {list(centre.shape)} and values {list(values.shape)}; expected [U', D] and [U, D] of one D"
        )
    return PreparedCosts.of(values, weights).to(centre)


def assign(costs: Tensor) -> Tensor:
    """The permutation `[U]` of least total cost, exactly; entry i is the column that row i gets.

    Raises:
        ValueError: if `costs` is not a square matrix of finite numbers.
    """
    if costs.ndim != 2 or costs.shape[0] != costs.shape[1] or not bool(torch.isfinite(costs).all()):
        raise ValueError(f"costs are {list(costs.shape)}; expected a square matrix [U, U] of finite numbers")
    _, columns = linear_sum_assignment(costs.detach().cpu().double().numpy())
    return torch.from_numpy(columns).to(costs.device, torch.int64)


def weighted_mean(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The element-wise mean `[...]` of tensors under element-wise weights, in float64.

    Where all weights are zero it is the plain mean.

    Args:
        values: K tensors of one shape.
        weights: K non-negative tensors of the same shape, or of one that broadcasts to it.
    """
    total = torch.zeros(values[0].shape, dtype=torch.float64, device=values[0].device)
    mass, plain = total.clone(), total.clone()
    for value, weight in zip(values, weights, strict=True):
        v, f = value.double(), weight.double()
        total.addcmul_(v, f.expand_as(v))
        mass += f
        plain += v
    return torch.where(mass > 0, total / mass.clamp(min=torch.finfo(torch.float64).tiny), plain / len(values))


def objective(centre: Tensor, values: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    """The sum over k of weights times squared distances from the centre, in float64; all of one shape."""
    w = centre.double()
    return sum(
        float((weight.double() * (w - value.double()).square()).sum())
        for value, weight in zip(values, weights, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Barycentre:
    """What alternating assignment and mean came to.

    Attributes:
        centre: `[U, D]`, float64.
        assignments: One permutation `[U]` for each of the K sets of units.
        objectives: J at the start (identity assignments, the reference), then after each iteration.
        steps: The length of the centre's move in each iteration, from the first.
    """

    centre: Tensor
    assignments: list[Tensor]
    objectives: list[float]
    steps: list[float]


def barycentre(
    reference: Tensor,
    values: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    iterations: int = 8,
    tolerance: float = 0.0,
) -> Barycentre:
    """Alternates exact assignments to a centre and the weighted mean, from a reference; J never increases.

    It stops when no assignment changes, when the centre moves by at most `tolerance` (root mean square), or after
    `iterations`. With weights of at least l everywhere, the squared steps add up to at most
    (J[0] - J[S]) / (K l) (Theorem 1 of FedFiOT).

    Args:
        reference: w[0], `[U, D]`.
        values: K sets of units `[U, D]`.
        weights: K non-negative tensors `[U, D]`.
        iterations: S, at least 1.
        tolerance: see above.

    Raises:
        ValueError: for no sets, shapes that differ, numbers that are not finite, or iterations < 1.
    """
    if not values or len(values) != len(weights) or iterations < 1:
        raise ValueError(
            f"{len(values)} sets of units, {len(weights)} of weights, {iterations} iterations; expected as many of"
            " both, at least 1, and at least 1 iteration"
        )
    if any(v.shape != reference.shape for v in values):
        raise ValueError(
            f"units are {[list(v.shape) for v in values]}; expected the reference's {list(reference.shape)}"
        )
    prepared = [PreparedCosts.of(v, f) for v, f in zip(values, weights, strict=True)]
    centre = reference.double()
    found: list[Tensor] = []
    objectives, steps = [objective(centre, values, weights)], []
    for _ in range(iterations):
        last, found = found, [assign(costs.to(centre)) for costs in prepared]
        if last and all(map(torch.equal, last, found)):
            break
        aligned = [v[p] for v, p in zip(values, found, strict=True)]
        masses = [f[p] for f, p in zip(weights, found, strict=True)]
        before, centre = centre, weighted_mean(aligned, masses)
        objectives.append(objective(centre, aligned, masses))
        steps.append(float((centre - before).norm()))
        if steps[-1] <= tolerance * centre.numel() ** 0.5:
            break
    return Barycentre(centre, found, objectives, steps)


def _check(values: Tensor, weights: Tensor) -> None:
    if values.ndim != 2 or values.shape != weights.shape:
        raise ValueError(f"values {list(values.shape)}, weights {list(weights.shape)}; expected two of shape [U, D]")
    if not bool(torch.isfinite(values).all()) or not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise ValueError("values or weights are not finite, or a weight is negative; expected finite, weights >= 0")
