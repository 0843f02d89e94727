"""Means of models: plain, by party, or element by element; what is not trained follows with the parties' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Tree
from fedfi.numerics.transport import weighted_mean


def mean(models: Sequence[Mapping[str, Tensor]], party: Sequence[float]) -> Tree:
    """The mean of models by parties' weights; of integers, such as counters, the maximum."""
    total = WeightedMean()
    for model, weight in zip(models, party, strict=True):
        total.add(model, weight)
    return total.mean()


def elementwise(
    models: Sequence[Mapping[str, Tensor]], weights: Sequence[Mapping[str, Tensor]], party: Sequence[float]
) -> Tree:
    """The mean of each tensor under its own weights; tensors without weights by parties' weights.

    Args:
        models: K models.
        weights: K trees of non-negative weights, of some or all of the tensors; where all K are zero, the plain mean.
        party: K weights for the other tensors.
    """
    found = mean([{n: t for n, t in m.items() if n not in weights[0]} for m in models], party)
    for name in weights[0]:
        values = weighted_mean([m[name] for m in models], [w[name] for w in weights])
        found[name] = values.to(models[0][name].dtype)
    return {name: found[name] for name in models[0]}
