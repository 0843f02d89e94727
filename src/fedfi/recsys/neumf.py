"""NeuMF, centralised: He et al., Neural Collaborative Filtering, WWW 2017, arXiv:1708.05031.

| paper | here |
|---|---|
| P, Q, user and item embeddings | model `user`, `items` |
| multilayer perceptron on their concatenation | backbone `ncf`, two hidden layers of d and d / 2 units |

Deviations: the multilayer perceptron alone, without the second, multiplied pair of embeddings (the paper's GMF) and
without pre-training, so that it has as many numbers an item as the methods it is compared with. Set `[train]
optimizer = "adam"` and a rate such as 0.001. Negatives never avoid held-out items, which the server does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, Metrics
from fedfi.federation.packet import Tree
from fedfi.federation.task import Task
from fedfi.recsys import factorised
from fedfi.recsys.backbones import BACKBONES
from fedfi.recsys.central import Central, CentralState

_BACKBONE = BACKBONES["ncf"]


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class NeuMF(Central):
    """Neural collaborative filtering of all interactions on a server."""

    def begin(self, task: Task, rng: torch.Generator) -> tuple[Tree, dict[str, float]]:
        """Fresh items, users and weights."""
        return factorised.begin(task, _BACKBONE, rng)

    def learn(self, state: CentralState, rng: torch.Generator) -> tuple[Tree, Tree, Metrics]:
        """An epoch on everyone's interactions."""
        return factorised.learn(state, _BACKBONE, rng)

    def for_client(self, state: CentralState, row: int) -> Tree:
        """The model with the client's own vector."""
        return factorised.for_client(state, row)

    def score(self, sent: Sequence[Tree], own: Sequence[Tensor]) -> Tensor:
        """The model's logits."""
        return factorised.score(_BACKBONE, list(sent))
