"""Judging recommenders: every client's scores of all items, against the items held out of its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfi.data.negatives import Interactions
from fedfi.errors import InputError
from fedfi.federation.algorithm import EvaluatesClients, Failure
from fedfi.federation.engine import Engine
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
    found: list[Mapping[str, Any]] = []
    for reply in engine.map("client_evaluate", jobs, round):
        if isinstance(reply, Failure):
            failed(reply)
        else:
            found.append(reply.packet.scalars)
    names = found[0] if found else ()
    means = {name: sum(float(values[name]) for values in found) / len(found) for name in names}
    return {k if k.startswith("validation/") else f"ranking/{k}": v for k, v in means.items()}
