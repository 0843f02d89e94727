"""Full ranking: where a held-out item stands among all items that a user has not seen.

Shapes: ``n`` users, ``m`` items; scores ``[n, m]`` are logits, for probabilities saturate, and saturated ones tie.

**Ties count against**: an item's rank is the number of candidates whose score is at least its own, itself included. So
a model that scores all items the same ranks every item last, and nothing hangs on the order of items.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

CUTOFFS = (5, 10, 20)


def ranks(scores: Tensor, targets: Tensor, users: Tensor, masked: Tensor) -> Tensor:
    """The rank of one item a user among those that are not masked.

    Args:
        scores: ``[n, m]``.
        targets: The item of each user ``[n]``, not masked.
        users: Row of each masked pair ``[k]``.
        masked: Item of each masked pair ``[k]``; no pair occurs twice.

    Returns:
        int64 ``[n]``, from 1 to the number of candidates.

    Raises:
        ValueError: If a score is not a number.
    """
    if not math.isfinite(float(scores.sum())) and bool(scores.isnan().any()):  # a sum of numbers is one pass
        user = int(scores.isnan().any(1).nonzero()[0])
        raise ValueError(f"{int(scores.isnan().sum())} scores are not a number, first of user {user}")
    own = scores.gather(1, targets[:, None])
    above = (scores >= own).sum(1)
    hidden = (scores[users, masked] >= own[users, 0]).long()
    return above - torch.zeros_like(above).scatter_add_(0, users, hidden)


def ranking_metrics(rank: Tensor, cutoffs: tuple[int, ...] = CUTOFFS) -> Mapping[str, Tensor]:
    """Hit rate, normalised discounted cumulative gain and reciprocal rank at cutoffs, of one relevant item a user.

    With one relevant item the ideal gain is 1, so NDCG@K is 1 / log2(rank + 1) within the first K, else 0.

    Args:
        rank: ``[n]``, from 1.
        cutoffs: The values of K.

    Returns:
        ``hr@K``, ``ndcg@K`` and ``mrr@K``, each float64 ``[n]``.
    """
    r = rank.double()
    found = {}
    for k in cutoffs:
        hit = (rank <= k).double()
        found[f"hr@{k}"] = hit
        found[f"ndcg@{k}"] = hit / torch.log2(r + 1)
        found[f"mrr@{k}"] = hit / r
    return found
