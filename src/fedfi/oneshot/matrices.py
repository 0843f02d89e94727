"""A layer's parameters as the matrix that Kronecker factors act on: `[out, in]`, the bias a last column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.packet import Tree
from fedfi.numerics.kfac import Factors
from fedfi.oneshot.given import check_statistics

_SIDES = ("inputs", "outputs")


def check_factors(
    what: str, statistics: Sequence[Mapping[str, Tensor]], models: Sequence[Mapping[str, Tensor]]
) -> None:
    """Checks that trees are the statistic `kfac` of models: two factors a layer, of its sides.

    Args:
        what: The argument, for errors.
        statistics: K trees.
        models: The K models.

    Raises:
        InputError: Naming the first entry that is no factor, or has another shape.
    """
    check_statistics(what, statistics, models)
    first, model = statistics[0], models[0]
    for name in first:
        layer, _, side = name.rpartition("/")
        if side not in _SIDES:
            raise InputError(
                f"{what}[0][{name!r}] is no Kronecker factor, which are named LAYER/inputs and LAYER/outputs"
                " (fedfi.measure gives them; kind='diagonal' takes one number a parameter)"
            )
        if lacking := [f"{layer}/{other}" for other in _SIDES if f"{layer}/{other}" not in first]:
            raise InputError(f"{what}[0] lacks {lacking[0]!r}, but holds {name!r}")
        if (f"{layer}.weight" if layer else "weight") not in model:
            raise InputError(f"{what}[0][{name!r}]: the models have no layer {layer!r}")
        size = matrix_of(model, layer).shape[1 - _SIDES.index(side)]
        if list(first[name].shape) != [size, size]:
            raise InputError(f"{what}[0][{name!r}] has shape {list(first[name].shape)}, expected {[size, size]}")


def factors_by_layer(statistic: Mapping[str, Tensor]) -> dict[str, Factors]:
    """The factors of each layer of the statistic `kfac`."""
    layers = dict.fromkeys(name.rpartition("/")[0] for name in statistic)
    return {n: Factors(statistic[f"{n}/inputs"], statistic[f"{n}/outputs"]) for n in layers}


def matrix_of(model: Mapping[str, Tensor], layer: str) -> Tensor:
    """The matrix of a layer, as a copy or a view."""
    prefix = f"{layer}." if layer else ""
    weight = model[f"{prefix}weight"].flatten(1)
    bias = model.get(f"{prefix}bias")
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def split(matrix: Tensor, like: Mapping[str, Tensor], layer: str) -> Tree:
    """The inverse of `matrix_of`."""
    prefix = f"{layer}." if layer else ""
    weight = like[f"{prefix}weight"]
    count = weight[0].numel()
    found = {f"{prefix}weight": matrix[:, :count].reshape(weight.shape)}
    if matrix.shape[1] > count:
        found[f"{prefix}bias"] = matrix[:, count]
    return found


def parameters_of(layers: Iterable[str], model: Mapping[str, Tensor]) -> set[str]:
    """Names of the parameters that the matrices of some layers hold."""
    return {n for layer in layers for n in split(matrix_of(model, layer), model, layer)}
