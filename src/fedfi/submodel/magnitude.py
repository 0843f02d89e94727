"""Submodels of the largest weights, or of any: what a ranking by Fisher information has to beat.

Local training keeps its mask for the round; each entry is averaged over the clients that held it. With
`score = "magnitude"` this is FIARSE without its moving mask and its gradient factor; with `score = "random"` it is
dropout of single weights, drawn anew for each client in each round.

Deviations: none, since it has no paper of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.packet import Tree
from fedfi.federation.training import Trained
from fedfi.submodel.masked import train_masked
from fedfi.submodel.model import Model
from fedfi.submodel.ranking import Scope, best
from fedfi.submodel.unstructured import Unstructured


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Magnitude(Unstructured):
    """Submodels of the largest weights, or of random ones."""

    score: Annotated[Literal["magnitude", "random"], Field(description="what parameters are ranked by")] = "magnitude"
    scope: Annotated[
        Scope, Field(description="one ranking of all parameters, one a block of the network, or one a layer")
    ] = "global"
    floor: Annotated[
        float, Field(ge=0, le=1, description="part of its proportional share that each layer keeps at least")
    ] = 0.0

    def mask(self, model: Model, fraction: float, rng: torch.Generator) -> Tensor:
        """The best by score."""
        size = model.pool.abs()
        if self.score == "random":
            size = torch.rand(len(size), generator=rng)
        return best(model.layout, size, fraction, scope=self.scope, floor=self.floor)

    def train(self, client: Client, mask: Tensor) -> tuple[Trained, Tree]:
        """Plain training under a fixed mask."""
        return train_masked(client, mask)
