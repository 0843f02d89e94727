"""Full ranking against a sorted list, and against ranx."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from fedfi.numerics.ranking import ranking_metrics, ranks


def scores_and_masks(users=40, items=60, seed=0):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.standard_normal((users, items)).astype(np.float32))
    orders = [rng.permutation(items) for _ in range(users)]
    targets = torch.tensor([int(o[0]) for o in orders])
    masked = [o[1 : 1 + rng.integers(0, 20)].tolist() for o in orders]
    pairs = [(u, i) for u, own in enumerate(masked) for i in own]
    return scores, targets, masked, torch.tensor([p[0] for p in pairs]), torch.tensor([p[1] for p in pairs])


def test_ranks_are_places_in_the_sorted_list_of_candidates():
    scores, targets, masked, users, items = scores_and_masks()
    found = ranks(scores, targets, users, items)
    for user, own in enumerate(masked):
        candidates = [i for i in range(scores.shape[1]) if i not in own]
        ordered = sorted(candidates, key=lambda i: -float(scores[user, i]))
        assert int(found[user]) == ordered.index(int(targets[user])) + 1


def test_ties_count_against():
    """Three candidates tie at 1, one is above, one is masked: whoever is asked for among the three has rank 4."""
    scores = torch.tensor([[1.0, 2.0, 1.0, 1.0, 1.0, 0.0]])
    for target in (0, 2, 3):
        assert ranks(scores, torch.tensor([target]), torch.tensor([0]), torch.tensor([4])).tolist() == [4]


def test_metrics_by_hand():
    """Rank 3: hit within 5, NDCG 1 / log2(4) = 1/2, reciprocal rank 1/3; rank 6 misses 5 and hits 10."""
    found = ranking_metrics(torch.tensor([3, 6]))
    assert found["hr@5"].tolist() == [1, 0]
    assert found["ndcg@5"].tolist() == [0.5, 0]
    assert found["mrr@5"].tolist() == [1 / 3, 0]
    assert found["ndcg@10"].tolist() == [0.5, 1 / math.log2(7)]
    assert sorted(found) == sorted(f"{m}@{k}" for m in ("hr", "ndcg", "mrr") for k in (5, 10, 20))


def test_a_score_that_is_no_number_is_refused():
    scores = torch.tensor([[0.0, 1.0], [float("nan"), 1.0]])
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"1 scores are not a number, first of user 1"):
        ranks(scores, torch.tensor([1, 1]), none, none)


@pytest.mark.slow  # compiles for seconds
def test_metrics_are_those_of_ranx():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranx = pytest.importorskip("ranx")
        scores, targets, masked, users, items = scores_and_masks()
        relevant = ranx.Qrels({str(u): {str(int(t)): 1} for u, t in enumerate(targets)})
        run = ranx.Run(
            {
                str(u): {str(i): float(scores[u, i]) for i in range(scores.shape[1]) if i not in own}
                for u, own in enumerate(masked)
            }
        )
        names = {"hr": "hit_rate", "ndcg": "ndcg", "mrr": "mrr"}
        wanted = [f"{names[m]}@{k}" for m in names for k in (5, 10, 20)]
        reference = ranx.evaluate(relevant, run, wanted)
    found = ranking_metrics(ranks(scores, targets, users, items))
    for key, values in found.items():
        metric, _, cutoff = key.partition("@")
        assert float(values.mean()) == pytest.approx(float(reference[f"{names[metric]}@{cutoff}"]), abs=1e-9), key
