"""GPFedRec: Zhang et al., GPFedRec: Graph-guided Personalization for Federated Recommendation, KDD 2024,
arXiv:2305.07866.

| paper | here |
|---|---|
| user relation graph from similarities of uploaded item tables | `Graph.weights` |
| neighbours by number or by threshold (in units of the mean similarity) | `neighbours`, `threshold` |
| message passing: user-specific item tables | `Graph.spread`, `layers`; sent to each client as `anchor` |
| globally shared table: mean of the user-specific ones, where training starts | `ExchangeState.mean` |
| regulariser towards the user-specific table, weight lambda | `strength` |

Deviations: similarity is the cosine, where the authors' code takes a cosine *distance* as if it were one, and so joins
the least similar users. The scoring function is a private linear layer or a user vector (`backbone`), where theirs is a
network. The regulariser's step follows that of the loss and is not clipped. The server holds a table of each client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Tree
from fedfi.recsys.backbones import BackboneName
from fedfi.recsys.exchange import Exchange, Plan
from fedfi.recsys.graph import Graph
from fedfi.recsys.recommender import TABLES_NOT_PRIVATE
from fedfi.recsys.replacement import replace_many


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class GPFedRec(Exchange):
    """Local training from the mean, pulled to a table that comes from similar users."""

    refused: ClassVar[Mapping[str, str]] = {
        **TABLES_NOT_PRIVATE,
        "encrypted": "its server compares the clients' tables, of which a sum tells nothing",
    }

    backbone: Annotated[BackboneName, Field(description="scoring function")] = "pfedrec"
    neighbours: Annotated[int, Field(ge=0, description="similar clients that count, itself too; 0 = by threshold")] = 0
    threshold: Annotated[float, Field(ge=0, description="least similarity of a neighbour, in units of the mean")] = 1.0
    layers: Annotated[int, Field(ge=1, description="steps of message passing")] = 1
    strength: Annotated[float, Field(ge=0, description="lambda, weight of the pull to the own graph table")] = 0.5

    def plan(self) -> Plan:
        """Own tables, the mean written over them each round, and a graph on the server."""
        return Plan(self.backbone, graph=Graph(self.neighbours, self.threshold, self.layers, self.strength))

    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """The mean."""
        return mean

    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """The mean."""
        replace_many(cohort.rows[who], mean, tables)
