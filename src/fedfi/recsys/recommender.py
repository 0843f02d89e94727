"""What all methods of recommendation share: ratings instead of examples, and every client ranking all items."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import RunError
from fedfi.federation.algorithm import CONFIG, Algorithm, Metrics, State
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Packet
from fedfi.federation.ranking import broken, judge_scores
from fedfi.recsys.recipe import own_ratings, ratings_of

ItemRate = Annotated[
    float, Field(gt=0, description="step size of the item table, in units of learning_rate * number of items")
]

TABLES_NOT_PRIVATE: Mapping[str, str] = {
    "private": "what its clients send are tables and not updates, which clipping would destroy"
    " (nearest valid: fedrkg, whose own options clip and noise make its tables private)"
}
"""Why `Algorithm.refused` wrappers may not stand around a method whose clients send tables."""


@validated(frozen=True, kw_only=True, config=CONFIG)
class Recommender(Algorithm[State]):
    """A method whose clients are users and score items."""

    data_kind: ClassVar[str] = "ratings"

    @abstractmethod
    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """Logits of all items for one client ``[items]``."""

    @abstractmethod
    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """Logits of all items for many clients ``[n, items]``; equal to a loop over `client_scores`."""

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Hit rate, NDCG and reciprocal rank of the client's held-out items under full ranking.

        Raises:
            RunError: If the client's scores are not all numbers.
        """
        own, scores = own_ratings(client), self.client_scores(packet, client)[None]
        if bool(broken(scores).any()):
            raise RunError("its scores are not numbers")
        values = judge_scores(
            scores,
            own.interactions,
            np.zeros(1, dtype=np.int64),
            np.array([own.validation]),
            np.array([own.test]),
        )
        return {name: float(value) for name, value in values.items()}

    def cohort_evaluate(self, cohort: Cohort) -> Mapping[str, Tensor]:
        """The same for many clients, each value ``[n]``; NaN for those whose scores are not all numbers."""
        data, rows = ratings_of(cohort.task), cohort.rows.numpy()
        with torch.inference_mode():
            scores = self.cohort_scores(cohort)
            failed = broken(scores)
            some = bool(failed.any())
            if some:
                scores = scores.masked_fill(failed[:, None], 0.0)
            found = judge_scores(scores, data.interactions, rows, data.validation[rows], data.test[rows])
        return found if not some else {n: v.masked_fill(failed, torch.nan) for n, v in found.items()}
