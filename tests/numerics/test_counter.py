"""Counter-based words: the published generator, and even draws."""

from __future__ import annotations

import numpy as np

from fedfi.numerics.counter import below, normal, uniform, words


def test_words_are_those_of_splitmix64():
    """The first three outputs of SplitMix64 from seed 0, as in Vigna's splitmix64.c."""
    drawn = words(np.zeros(3, dtype=np.uint64), np.arange(3))
    assert [hex(w) for w in drawn.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_draws_are_even():
    """Of 60,000 draws of 6 faces each comes 10,000 times, give or take 5 standard deviations of 91."""
    drawn = words(np.full(60_000, 5, dtype=np.uint64), np.arange(60_000))
    counts = np.bincount(below(drawn, np.full(60_000, 6)), minlength=6)
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 460
    assert 0 <= uniform(drawn).min() < uniform(drawn).max() < 1


def test_normal_numbers_have_mean_0_and_variance_1():
    """Standard errors of 40,000 draws: .005 for the mean, .007 for the variance."""
    drawn = normal(np.full(40_000, 9, dtype=np.uint64), np.arange(40_000))
    assert abs(drawn.mean()) < 0.025
    assert abs(drawn.var() - 1) < 0.036
