"""CoLR: Nguyen et al., Towards Efficient Communication and Secure Federated Recommendation System via Low-rank
Training, WWW 2024, arXiv:2401.03748.

| paper | here |
|---|---|
| update of the item table: A B, with a random B that all share, anew each round | `random_subspace`; its seed is sent |
| A, which a client trains and sends | reply `items` `[items, rank]` |
| server: Q + mean(A) B, the same as the mean of the updates | `Exchange.aggregate` |
| private user vectors | memory `head/user` |

Traffic upwards is rank / d of FedMF's. What is sent adds up linearly, so that encryption would fit it; the wrapper of
this library refuses it, since clients of an encrypted method follow by sums alone, and the server draws the subspace.

Deviations: B is orthonormal, where the authors' code scales it by sqrt(d / rank) and A's gradient by the inverse, so
that their step is sqrt(d / rank) times this one; here the step size means the same for every rank, and at rank d the
method is FedMF. The mean is over participants, where that code divides an item's by the number of clients that saw it.
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
from fedfi.recsys.exchange import Exchange, Plan
from fedfi.recsys.recommender import TABLES_NOT_PRIVATE
from fedfi.recsys.replacement import replace_many


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class CoLR(Exchange):
    """Matrix factorisation whose table is updated in a random subspace, so that a client sends little."""

    refused: ClassVar[Mapping[str, str]] = {
        **TABLES_NOT_PRIVATE,
        "encrypted": "its server draws each round's subspace, which clients that follow by sums alone do not learn",
    }

    rank: Annotated[int, Field(ge=1, description="dimension of a round's subspace, at most that of the table")] = 4

    def plan(self) -> Plan:
        """One table for all, updates of low rank averaged each round."""
        return Plan("mf", keeps=False, rank=self.rank)

    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """The mean."""
        return mean

    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """The mean."""
        replace_many(cohort.rows[who], mean, tables)
