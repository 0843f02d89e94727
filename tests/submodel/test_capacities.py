from __future__ import annotations

from collections import Counter

from fedfi.submodel.capacities import NON_UNIFORM, UNIFORM, assign

CLIENTS = [str(i) for i in range(100)]


def test_shares_are_exact():
    """a10-b10-c30-d30-e20 and a20-b20-c20-d20-e20 of 100 clients."""
    assert Counter(assign(CLIENTS, NON_UNIFORM, 0).values()) == {
        1.0: 10,
        0.5: 10,
        0.25: 30,
        0.125: 30,
        0.0625: 20,
    }
    assert Counter(assign(CLIENTS, UNIFORM, 0).values()) == {
        1.0: 20,
        0.5: 20,
        0.25: 20,
        0.125: 20,
        0.0625: 20,
    }


def test_what_does_not_divide_goes_to_the_largest_remainder():
    """Seven clients: quotas 1.4, 1.4, 1.4, 1.4, 1.4 round down to 5 clients; the first two levels get one more."""
    assert sorted(Counter(assign(CLIENTS[:7], UNIFORM, 0).values()).values()) == [1, 1, 1, 2, 2]


def test_levels_depend_on_the_seed_and_nothing_else():
    assert assign(CLIENTS, UNIFORM, 3) == assign(CLIENTS, UNIFORM, 3)
    assert assign(CLIENTS, UNIFORM, 3) != assign(CLIENTS, UNIFORM, 4)
