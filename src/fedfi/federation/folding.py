"""Means that fold one reply at a time, in the memory of one model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedfi.federation.packet import Tree


class WeightedMean:
    """A running weighted mean of trees: floating-point entries are averaged, integer ones keep their maximum.

    Sums of half precision are kept in single precision; a mean has the type of what it is the mean of.
    Counters such as a norm layer's number of batches have no mean; the largest is the one that fits the others.
    """

    def __init__(self) -> None:
        self._sums: Tree = {}
        self._kinds: dict[str, torch.dtype] = {}
        self.weight = 0.0

    def add(self, tree: Mapping[str, Tensor], weight: float = 1.0) -> None:
        """Adds one tree; all must have the same names and shapes."""
        for name, value in tree.items():
            if name not in self._sums:
                self._kinds[name] = value.dtype
                self._sums[name] = value.to(summing(value)) * weight if value.is_floating_point() else value.clone()
            elif value.is_floating_point():
                self._sums[name].add_(value, alpha=weight)
            else:
                self._sums[name] = torch.maximum(self._sums[name], value)
        self.weight += weight

    def add_scalar(self, name: str, value: float | int | str | bool, weight: float) -> None:
        """Adds one number, in double precision."""
        self.add({name: torch.tensor(float(value), dtype=torch.float64)}, weight)

    def scalar(self, name: str) -> float:
        """The mean of the numbers of this name."""
        return float(self._sums[name] / self.weight)

    def mean(self) -> Tree:
        """The mean of what was added, which is gone afterwards: the running sums become it."""
        sums, self._sums = self._sums, {}
        for name, total in sums.items():
            if total.is_floating_point():
                sums[name] = total.div_(self.weight).to(self._kinds[name])
        self.weight = 0.0
        return sums


def summing(values: Tensor) -> torch.dtype:
    """The type to add up values of a floating-point type in: half precision overflows, and stops counting at 256."""
    return torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else values.dtype


def stepped(model: Mapping[str, Tensor], mean: Mapping[str, Tensor], trained: Collection[str], rate: float) -> Tree:
    """The model after a mean update: X <- x - rate * (mean of start - end) for `trained` entries.

    Entries of the mean that are not trained, such as buffers, are taken as they are; those it lacks stay.
    """
    return {n: x - mean[n] * rate if n in trained else mean.get(n, x) for n, x in model.items()}
