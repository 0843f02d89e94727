"""Selection and voting, by hand."""

from __future__ import annotations

import pytest
import torch

from fedfi.personal.voting import Rule, budget_of, consensus, exchanged, scores_of_packets, top_packets

FISHER = torch.tensor([5.0, 1.0, 0.0, 4.0, 2.0, 3.0, 0.5])  # packets of 2: (5, 1), (0, 4), (2, 3), (.5)


def test_high_information_selects_by_budget():
    """4/7 of seven parameters: 5, 4, 3, 2. Packets score 5, 4, 2 + 3 and 0."""
    scores = scores_of_packets(FISHER, "high", 2, ratio=4 / 7)
    assert scores.tolist() == [5, 4, 5, 0]
    assert top_packets(scores, 2).tolist() == [True, False, True, False]
    assert top_packets(scores, 4).tolist() == [True, True, True, False]  # the last holds nothing selected


def test_low_information_selects_the_others():
    """3/7: 0, .5, 1, whose largest is 1: they lie 1, .5 and 0 below it."""
    scores = scores_of_packets(FISHER, "low", 2, ratio=3 / 7)
    torch.testing.assert_close(scores, torch.tensor([0, 1, 0, 0.5], dtype=torch.float64), atol=1e-6, rtol=0)
    assert top_packets(scores, 4).tolist() == [True, True, False, True]  # the 1 counts, too


def test_threshold_selects_by_the_mean():
    """The mean is 15.5 / 7 = 2.214: 5, 4 and 3 lie above it, four at most."""
    assert scores_of_packets(FISHER, "high", 2, threshold=1.0).tolist() == [5, 4, 3, 0]
    assert top_packets(scores_of_packets(FISHER, "low", 2, threshold=1.0), 4).tolist() == [True, True, True, True]
    assert not top_packets(scores_of_packets(FISHER, "high", 2, threshold=100.0), 4).any()


@pytest.mark.parametrize(("quorum", "voters", "needed"), [(0.5, 10, 5), (0.25, 10, 3), (0.0, 10, 3), (0.3, 10, 3)])
def test_votes_needed(quorum, voters, needed):
    assert Rule(quorum, 3, 100).needed(voters) == needed


def test_consensus_is_what_enough_want_within_the_budget():
    votes = torch.tensor([5, 2, 3, 4, 9])
    assert consensus(votes, 9, Rule(0.4, 3, 10)).tolist() == [True, False, False, True, True]
    assert consensus(votes, 9, Rule(0.0, 3, 2)).tolist() == [True, False, False, False, True]
    assert not consensus(torch.tensor([2, 2]), 2, Rule(0.0, 3, 2)).any()  # two are never enough


def test_ties_fall_by_hash_and_not_to_the_same_packets_each_round():
    votes = torch.full((20,), 4)
    chosen = [consensus(votes, 4, Rule(0.5, 3, 5), "run", r) for r in range(10)]
    assert all(int(c.sum()) == 5 for c in chosen)
    assert torch.equal(chosen[0], consensus(votes, 4, Rule(0.5, 3, 5), "run", 0))
    assert len({tuple(c.tolist()) for c in chosen}) > 5


def test_swapping_keeps_the_number_of_marked_packets():
    mask = torch.arange(100) < 20
    rng = torch.Generator().manual_seed(0)
    all_of_them = exchanged(mask, 1.0, rng)
    assert int(all_of_them.sum()) == 20
    assert not (all_of_them & mask).any()
    assert torch.equal(exchanged(mask, 0.0, rng), mask)
    assert torch.equal(exchanged(torch.ones(4, dtype=torch.bool), 1.0, rng), torch.ones(4, dtype=torch.bool))


def test_budget_is_the_share_that_was_meant():
    assert [budget_of(s, 30) for s in (0.1, 0.2, 1.0, 0.01)] == [3, 6, 30, 1]
