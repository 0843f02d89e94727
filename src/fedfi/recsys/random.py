"""Random: every user's items in an order of chance, the same in every round; what no method may fall below.

No paper, so no deviations. The order of a user comes from the run's seed and its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np
import torch
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import word_key
from fedfi.federation.task import Task
from fedfi.numerics.counter import uniform, words
from fedfi.recsys.recipe import own_ratings, ratings_of
from fedfi.recsys.recommender import Recommender


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Random(Recommender[int]):
    """Scores items by chance."""

    def init(self, task: Task, rng: torch.Generator) -> int:
        """Nothing."""
        ratings_of(task)
        return 0

    def configure(
        self, state: int, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Asks for nothing."""
        return ((client, _NOTHING) for client in self.sample(clients, rng))

    def reply_layout(self, state: int, packet: Packet) -> Layout:
        """Nothing."""
        return Layout()

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Does nothing."""
        return _NOTHING

    def cohort_update(self, cohort: Cohort) -> Iterable[Packet]:
        """Does nothing."""
        return [_NOTHING] * len(cohort)

    def aggregate(self, state: int, round: int, replies: Iterator[Reply], rng: torch.Generator) -> tuple[int, Metrics]:
        """Learns nothing."""
        return state + sum(1 for _ in replies), {}

    def global_model(self, state: int) -> Tree:
        """How many replies there were; nothing is learned."""
        return {"replies": torch.tensor([state])}

    def configure_evaluation(
        self, state: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends nothing."""
        return ((client, _NOTHING) for client in clients)

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """Chance."""
        return _chance(client.seed, client.id, own_ratings(client).interactions.items)

    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """Chance."""
        items = len(ratings_of(cohort.task).items)
        return torch.stack([_chance(cohort.seed, client, items) for client in cohort.ids])


_NOTHING = Packet()


def _chance(seed: int, client: str, items: int) -> Tensor:
    key = np.full(items, word_key(seed, "random", client), dtype=np.uint64)
    return torch.from_numpy(uniform(words(key, np.arange(items))))
