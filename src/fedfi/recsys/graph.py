"""A graph of clients whose item tables are alike, and tables that spread along it. Shapes: ``k`` clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Graph:
    """How tables spread.

    Attributes:
        neighbours: Most similar clients that count, itself among them; 0: all above the threshold.
        threshold: In units of the mean similarity.
        layers: How often tables spread.
        strength: Weight of the pull to the result in local training.
    """

    neighbours: int
    threshold: float
    layers: int
    strength: float

    def spread(self, tables: Tensor) -> Tensor:
        """For each client the mean of its neighbours' tables ``[k, items, d]``, `layers` times."""
        flat = tables.flatten(1)
        weights = self.weights(flat)
        for _ in range(self.layers):
            flat = weights @ flat
        return flat.view_as(tables)

    def weights(self, flat: Tensor) -> Tensor:
        """Rows ``[k, k]`` that sum to 1, from the cosine similarity of tables ``[k, items * d]``."""
        direction = torch.nn.functional.normalize(flat)
        similarity = direction @ direction.T
        if self.neighbours:
            kept = similarity.topk(min(self.neighbours, len(similarity)), 1).indices
            chosen = torch.zeros_like(similarity).scatter_(1, kept, 1.0)
        else:
            chosen = (similarity > similarity.mean() * self.threshold).float()
            alone = chosen.sum(1) == 0
            chosen[alone] = torch.eye(len(chosen))[alone]
        return chosen / chosen.sum(1, keepdim=True)
