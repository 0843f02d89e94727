"""ItemKNN: Sarwar et al., Item-based Collaborative Filtering Recommendation Algorithms, WWW 2001; Deshpande and
Karypis, Item-Based Top-N Recommendation Algorithms, ACM TOIS 2004.

| paper | here |
|---|---|
| cosine of two items' columns of the user-item matrix | `learn` |
| the k most similar items of each item | `neighbours` |
| score: sum of similarities to the items a user has | `score` |

Deviations: `shrinkage` damps similarities of rare items, cos * n_ij / (n_ij + shrinkage) with n_ij common users, as is
usual since Bell and Koren (ICDM 2007); 0 is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, Metrics
from fedfi.federation.packet import Tree
from fedfi.federation.task import Task
from fedfi.recsys.central import Central, CentralState
from fedfi.recsys.recipe import ratings_of


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class ItemKNN(Central):
    """Recommends what is most similar to what a user has, by common users."""

    neighbours: Annotated[int, Field(ge=1, description="similar items kept for each item")] = 50
    shrinkage: Annotated[float, Field(ge=0, description="damps similarities of items with few common users")] = 10.0

    def begin(self, task: Task, rng: torch.Generator) -> tuple[Tree, dict[str, float]]:
        """No item is similar to another."""
        items = len(ratings_of(task).items)
        return {"similarity": torch.zeros(items, items)}, {}

    def learn(self, state: CentralState, rng: torch.Generator) -> tuple[Tree, Tree, Metrics]:
        """Similarities ``[m, m]``: row i holds those of item i's neighbours."""
        seen = state.seen.float()
        common = seen.T @ seen
        norm = common.diagonal().sqrt().clamp(min=1)
        cosine = common / norm[:, None] / norm * (common / (common + self.shrinkage).clamp(min=1e-12))
        cosine.fill_diagonal_(0.0)
        kept = cosine.topk(min(self.neighbours, len(cosine)), 1)
        return {"similarity": torch.zeros_like(cosine).scatter_(1, kept.indices, kept.values)}, {}, {}

    def for_client(self, state: CentralState, row: int) -> Tree:
        """All similarities."""
        return state.model

    def score(self, sent: Sequence[Tree], own: Sequence[Tensor]) -> Tensor:
        """How often and how closely an item's neighbours are among a user's own."""
        return torch.stack([tree["similarity"][:, items].sum(1) for tree, items in zip(sent, own, strict=True)])
