"""Averaging over the clients that hold an entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

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
        self._sum = torch.zeros_like(model.vector)
        self.count = torch.zeros_like(model.vector)
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
        self._sum += torch.zeros_like(self._sum).masked_scatter_(mask, update * weight)
        self.count += mask * weight
        self._weight += weight
        if self._start == "masked" and self._divide == "plain":
            self._sum += self._model.vector * ~mask * weight
        for name, value in buffers.items():
            part = parts[name] if parts else torch.ones(self._buffers[name].shape, dtype=torch.bool)
            whole = _lowest(self._buffers[name]).masked_scatter_(part, value)
            if value.is_floating_point():
                self._buffers[name] += whole * weight
            else:  # a counter has no mean; the largest is the one that fits the others
                self._buffers[name] = torch.maximum(self._buffers[name], whole)
            self._held[name] += part * weight

    def step(self) -> Tensor:
        """The mean update `[size]`."""
        if self._divide == "plain":
            return self._sum / self._weight
        return torch.where(self.count > 0, self._sum / self.count.where(self.count > 0, 1), 0.0)

    def next(self, server_learning_rate: float = 1.0, step: Tensor | None = None) -> Model:
        """X <- x - server_learning_rate * step, by default the mean update; buffers take their means."""
        vector = self._model.vector - (self.step() if step is None else step) * server_learning_rate
        return Model(vector, self._model.constants | self._means(), self._model.buffers, self._model.layout)

    def _means(self) -> dict[str, Tensor]:
        means = {}
        for name, total in self._buffers.items():
            held, before = self._held[name], self._model.constants[name]
            mean = total / held.where(held > 0, 1) if total.is_floating_point() else total
            means[name] = torch.where(held > 0, mean, before)
        return means


def _lowest(like: Tensor) -> Tensor:
    """What nothing was added to: zeros for sums, the smallest value for counters, whose largest is kept."""
    if like.is_floating_point() or like.dtype == torch.bool:
        return torch.zeros_like(like)
    return torch.full_like(like, torch.iinfo(like.dtype).min)
