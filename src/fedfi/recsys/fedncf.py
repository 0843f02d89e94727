"""FedNCF: Perifanis and Efraimidis, Federated Neural Collaborative Filtering, Knowledge-Based Systems 2022,
arXiv:2106.04405.

| paper | here |
|---|---|
| user profile, private | memory `head/user` |
| item profile and the network's weights, averaged | `ExchangeState.mean` |

Deviations: of the paper's three networks this is the multilayer perceptron, of two hidden layers of d and d / 2 units;
the secure aggregation (MF-SecAvg) is left out, since it does not change the mean. The mean is unweighted.
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

_NETWORK = tuple(f"layer{n}.{part}" for n in (1, 2, 3) for part in ("weight", "bias"))


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedNCF(Exchange):
    """A neural scoring function that all share, private user vectors and one item table."""

    def plan(self) -> Plan:
        """Table and network for all, averaged each round."""
        return Plan("ncf", keeps=False, shared=_NETWORK)

    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """The mean."""
        return mean

    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """The mean."""
        replace_many(cohort.rows[who], mean, tables)
