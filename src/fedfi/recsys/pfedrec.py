"""PFedRec: Zhang et al., Dual Personalization on Federated Recommendation, IJCAI 2023, arXiv:2301.08143.

| paper, Algorithm 1 | here |
|---|---|
| score function S(theta_i), private: a linear layer | memory `head/weight`, `head/bias` |
| per batch: update theta, then, scored anew, the item embeddings | `Plan.alternate` |
| mean of item embeddings, downloaded by all | `ExchangeState.mean` |
| dual personalisation: the client's own fine-tuned embeddings rank | memory `items` |

Deviations: the mean is over participants, unweighted, as in the authors' code. The step size of the items is
learning_rate * items * `item_rate`; in the authors' code the last factor is 80 (preset `as-published`), tuned with
negatives that avoid held-out items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

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
class PFedRec(Exchange):
    """A private linear scoring function and item tables that are tuned by each client and averaged each round."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as-published": {"item_rate": 80.0}}

    def plan(self) -> Plan:
        """Own tables and heads, the mean written over the table each round."""
        return Plan("pfedrec", alternate=True)

    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """The mean."""
        return mean

    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """The mean."""
        replace_many(cohort.rows[who], mean, tables)
