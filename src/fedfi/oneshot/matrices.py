"""A layer's parameters as the matrix that Kronecker factors act on: `[out, in]`, the bias a last column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedfi.federation.packet import Tree
from fedfi.numerics.kfac import Factors


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
