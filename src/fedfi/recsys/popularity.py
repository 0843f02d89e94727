"""Popularity: items in the order of how many users have them; no reference, and often hard to beat.

Cremonesi, Koren and Turrin, Performance of Recommender Algorithms on Top-N Recommendation Tasks, RecSys 2010, showed
how far it goes. Deviations: none; equally popular items tie, and ties count against.
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
from fedfi.recsys.central import Central, CentralState
from fedfi.recsys.recipe import ratings_of


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Popularity(Central):
    """Ranks items by the number of users that have them."""

    def begin(self, task: Task, rng: torch.Generator) -> tuple[Tree, dict[str, float]]:
        """No counts yet."""
        return {"counts": torch.zeros(len(ratings_of(task).items))}, {}

    def learn(self, state: CentralState, rng: torch.Generator) -> tuple[Tree, Tree, Metrics]:
        """Counts."""
        return {"counts": state.seen.sum(0).float()}, {}, {}

    def for_client(self, state: CentralState, row: int) -> Tree:
        """The counts."""
        return state.model

    def score(self, sent: Sequence[Tree], own: Sequence[Tensor]) -> Tensor:
        """The counts, for everyone."""
        return torch.stack([tree["counts"] for tree in sent])
