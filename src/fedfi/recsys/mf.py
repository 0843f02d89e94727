"""MF, centralised: Koren, Bell and Volinsky, Matrix Factorization Techniques for Recommender Systems, IEEE Computer
2009.

| paper | here |
|---|---|
| q_i, p_u | model `items`, `user` |
| score q_i . p_u | backbone `mf` |

Deviations: implicit feedback with drawn negatives and cross-entropy instead of squared errors on ratings, and no
biases, as in the comparisons of federated recommenders. Set `[train] optimizer = "adam"` and a rate such as 0.001: the
rates of federated methods do not suit it. Negatives never avoid held-out items, which the server does not know.
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

_BACKBONE = BACKBONES["mf"]


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class MF(Central):
    """Matrix factorisation of all interactions on a server."""

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
