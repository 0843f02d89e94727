"""Judging recommenders: every client's scores of all items, against the items held out of its training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfi.data.negatives import Interactions
from fedfi.errors import InputError
from fedfi.federation.algorithm import EvaluatesClients, Failure
from fedfi.federation.engine import Engine
from fedfi.federation.reported import reported
from fedfi.federation.rng import keyed_generator
from fedfi.numerics.counter import Ints
from fedfi.numerics.ranking import ranking_metrics, ranks


def judge_scores(scores: Tensor, of: Interactions, rows: Ints, validation: Ints, test: Ints) -> dict[str, Tensor]:
    """Metrics of each client under full ranking.

    For validation a client's training items are no candidates, for the test its validation item is none either.

    Args:
        scores: Logits of all items `[clients, items]`.
        of: Holds the training items.
        rows: The clients' rows of `of` `[clients]`.
        validation: Held-out items `[clients]`.
        test: Held-out items `[clients]`.

    Returns:
        ``"hr@10"`` and so on for the test, ``"validation/hr@10"`` and so on, each `[clients]`.
    """
    counts = of.counts[rows]
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    inside = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    users = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
    trained = torch.from_numpy(of.positives[np.repeat(of.starts[rows], counts) + inside])
    first, last = torch.from_numpy(validation), torch.from_numpy(test)
    found = {f"validation/{k}": v for k, v in ranking_metrics(ranks(scores, first, users, trained)).items()}
    users, hidden = torch.cat([users, torch.arange(len(rows))]), torch.cat([trained, first])
    return {**ranking_metrics(ranks(scores, last, users, hidden)), **found}


def broken(scores: Tensor) -> Tensor:
    """Whose scores rank nothing, since one is no number or beyond all numbers: bool `[clients]`.

    An item may have a score below all numbers: that it is not to be recommended.

    Args:
        scores: `[clients, items]`.
    """
    if math.isfinite(float(scores.sum())):  # one pass
        return torch.zeros(len(scores), dtype=torch.bool)
    return ~(scores < torch.inf).all(1)


def judge_clients(
    engine: Engine, algorithm: object, state: Any, round: int, seed: int, failed: Callable[[Failure], None]
) -> dict[str, float]:
    """Means over clients of what a method's clients report: `ranking/...` for the test, `validation/...`.

    Raises:
        InputError: If the method's clients do not evaluate.
    """
    if not isinstance(algorithm, EvaluatesClients):
        raise InputError(f"{type(algorithm).__name__} does not rank items")
    rng = keyed_generator(seed, "server", round, "evaluate")
    jobs = algorithm.configure_evaluation(state, engine.clients(), rng)
    found: dict[str, dict[str, float]] = {}
    for reply in engine.map("client_evaluate", jobs, round):
        numbers = reported(reply)
        if isinstance(numbers, Failure):
            failed(numbers)
        else:
            found[reply.client] = numbers
    kinds = Counter(tuple(sorted(numbers)) for numbers in found.values())
    names = set(kinds.most_common(1)[0][0]) if kinds else set()  # all rank alike; who reports something else is refused
    for client in [c for c, numbers in found.items() if set(numbers) != names]:
        text = (
            f"client {client!r}: its report has other names than those of the others: {sorted(found.pop(client))[:5]}"
        )
        failed(Failure(client, "reply", text))
    first = next(iter(found.values()), {})
    means = {name: sum(numbers[name] for numbers in found.values()) / len(found) for name in first}
    return {k if k.startswith("validation/") else f"ranking/{k}": v for k, v in means.items()}
