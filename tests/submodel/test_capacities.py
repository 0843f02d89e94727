from __future__ import annotations

from collections import Counter

import pytest

from fedfi.errors import InputError
from fedfi.submodel.capacities import NON_UNIFORM, UNIFORM, assign
from fedfi.submodel.fiarse import FIARSE

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


@pytest.mark.parametrize(
    "mix", [{0.3333333: 0.5, 0.33333333: 0.5}, {1.0: 0.5, 0.9999999: 0.5}, {0.9999999: 1.0}, {0.1 + 0.2: 0.5, 0.3: 0.5}]
)
def test_levels_that_would_be_called_the_same(mix):
    """Metrics, files and the batch norms of FjORD go by six digits."""
    with pytest.raises(InputError, match=r"levels .* are both called .* six digits"):
        FIARSE(capacities=mix)


def test_levels_that_differ_in_six_digits():
    assert FIARSE(capacities={0.333333: 0.5, 0.333334: 0.5}).level_names == {"0.333333": 0.333333, "0.333334": 0.333334}
    assert FIARSE(capacities={1 / 3: 1.0, 0.5: 0.0}).level_names == {"0.333333": 1 / 3, "0.5": 0.5}
