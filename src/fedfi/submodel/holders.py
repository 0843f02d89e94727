"""Averaging over the clients that hold an entry.

Sums and counts of half precision are kept in single precision; a mean has the type of what it is the mean of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.folding import summing
from fedfi.submodel.model import Model


class HolderMean:
    """Folds what clients send back of their submodels into the next model.

    Args:
        model: The model from which the submodels were taken.
        divide: ``"count"`` divides each entry by the weight of the clients that held it, and leaves entries that
            nobody held bit-identical; ``"plain"`` divides by the weight of all clients.
        start: ``"masked"`` takes FedFIbOS's printed algorithm at its word: a client starts from x * M, so its update
            off the mask is x itself. Under ``"count"`` only clients that hold an entry speak for it, so it makes
            no difference.
    """

    def __init__(
        self, model: Model, divide: Literal["count", "plain"] = "count", start: Literal["full", "masked"] = "full"
    ) -> None:
        self._model, self._divide, self._start = model, divide, start
        self._sum = torch.zeros_like(model.vector, dtype=summing(model.vector))
        self.count = torch.zeros_like(self._sum)
        self._weight = 0.0
        self._buffers = {n: _lowest(model.constants[n]) for n in model.buffers}
        self._held = {n: torch.zeros(t.shape) for n, t in self._buffers.items()}

    def add(
        self,
        mask: Tensor,
        update: Tensor,
        buffers: Mapping[str, Tensor],
        *,
        weight: float = 1.0,
        parts: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Adds one client.

        Args:
            mask: The entries that it speaks for `[size]`.
            update: Its start minus its end, of these entries, in order.
            buffers: New values by name.
            weight: Its weight in the means.
            parts: Which entries of a buffer these values are (masks of the buffer's shape); by default all.
        """
        dense = torch.zeros_like(self._sum).masked_scatter_(mask, update.to(self._sum.dtype))
        self.add_dense(dense, mask, buffers, weight=weight, parts=parts)

    def add_dense(
        self,
        update: Tensor,
        held: Tensor,
        buffers: Mapping[str, Tensor],
        *,
        weight: float = 1.0,
        parts: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Adds one client, or the mean of many as if it were one.

        Args:
            update: Start minus end of all entries `[size]`, zero where nothing is held.
            held: Which entries are held, or the share of clients that hold them `[size]`.
            buffers: As `add`.
            weight: As `add`.
            parts: As `add`.
        """
        share = held.to(self._sum.dtype)
        self._sum += update * weight
        self.count += share * weight
        self._weight += weight
        if self._start == "masked" and self._divide == "plain":
            self._sum += self._model.vector * (1 - share) * weight
        for name, value in buffers.items():
            part = parts[name] if parts else torch.ones(self._buffers[name].shape, dtype=torch.bool)
            total = self._buffers[name]
            whole = _lowest(total).masked_scatter_(part, value.to(total.dtype))
            if value.is_floating_point():
                total += whole * weight
            else:  # a counter has no mean; the largest is the one that fits the others
                self._buffers[name] = torch.maximum(total, whole)
            self._held[name] += part * weight

    def step(self) -> Tensor:
        """The mean update `[size]`."""
        if self._divide == "plain":
            return self._sum / self._weight
        return torch.where(self.count > 0, self._sum / self.count.where(self.count > 0, 1), 0.0)

    def next(self, server_learning_rate: float = 1.0, step: Tensor | None = None) -> Model:
        """X <- x - server_learning_rate * step, by default the mean update; buffers take their means."""
        before = self._model.vector
        vector = before - (self.step() if step is None else step) * server_learning_rate
        constants = self._model.constants | self._means()
        return Model(vector.to(before.dtype), constants, self._model.buffers, self._model.layout)

    def _means(self) -> dict[str, Tensor]:
        means = {}
        for name, total in self._buffers.items():
            held, before = self._held[name], self._model.constants[name]
            mean = total / held.where(held > 0, 1) if total.is_floating_point() else total
            means[name] = torch.where(held > 0, mean.to(before.dtype), before)
        return means


def _lowest(like: Tensor) -> Tensor:
    """What nothing was added to: zeros for sums, the smallest value for counters, whose largest is kept."""
    if like.is_floating_point() or like.dtype == torch.bool:
        return torch.zeros_like(like, dtype=summing(like))
    return torch.full_like(like, torch.iinfo(like.dtype).min)
