"""Means of models: plain, by party, or element by element; what is not trained follows with the parties' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Tree
from fedfi.numerics.transport import weighted_mean
from fedfi.oneshot.given import check_diagonals, check_models


def same_tensors(tree: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of a tree whose tensor is another's as well, as a state dict has tied parameters, to the first one."""
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for name, tensor in tree.items():
        key = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and first.setdefault(key, name) != name:
            found[name] = first[key]
    return found


def mean(models: Sequence[Mapping[str, Tensor]], party: Sequence[float]) -> Tree:
    """The mean of models by parties' weights; of integers, such as counters, the maximum.

    Args:
        models: K models.
        party: K weights.

    Raises:
        InputError: If models or weights do not fit together.
    """
    check_models(models, party)
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
        party: K weights for the other tensors. A tensor that a model has under two names is the mean of that with
            weights under both.

    Raises:
        InputError: If models or weights do not fit together.
    """
    check_models(models, party)
    check_diagonals("weights", weights, models)
    found = mean([{n: t for n, t in m.items() if n not in weights[0]} for m in models], party)
    for name in weights[0]:
        values = weighted_mean([m[name] for m in models], [w[name] for w in weights])
        found[name] = values.to(models[0][name].dtype)
    for name, first in same_tensors(models[0]).items():
        if (name in weights[0]) != (first in weights[0]):
            found[name] = found[first] = found[name if name in weights[0] else first]
    return {name: found[name] for name in models[0]}
