"""FedMF: Chai et al., Secure Federated Matrix Factorization, IEEE Intelligent Systems 2021, arXiv:1906.05108.

| paper | here |
|---|---|
| user vector u_i, private | memory `head/user` |
| item matrix V, the server's | `ExchangeState.mean`, sent each round |
| gradient step on V at a client, summed on the server | local training, mean of tables |

Deviations: the paper sends encrypted gradients of single squared errors on ratings; here, as in all comparisons of
personalised recommenders, clients train a round on implicit feedback with drawn negatives and send their tables, which
are averaged. Encryption is left out here, and is what `[algorithm.encrypted]` adds. A client ranks by the newest mean.
"""

from __future__ import annotations

from typing import final

from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Tree
from fedfi.recsys.exchange import Exchange, Plan
from fedfi.recsys.replacement import replace_many


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedMF(Exchange):
    """Matrix factorisation with private user vectors and one item table, averaged each round."""

    def plan(self) -> Plan:
        """One table for all, averaged each round."""
        return Plan("mf", keeps=False)

    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """The mean."""
        return mean

    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """The mean."""
        replace_many(cohort.rows[who], mean, tables)
