from __future__ import annotations

from collections import Counter

import pytest
from tests import tiny

import fedfi
from fedfi.errors import InputError
from fedfi.federation.record import read_lines
from fedfi.submodel.capacities import NON_UNIFORM, UNIFORM, assign, empty_levels
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.fjord import FjORD
from fedfi.submodel.heterofl import HeteroFL

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


def test_levels_that_rounding_leaves_empty():
    """Six clients: quotas .6, .6, 1.8, 1.8, 1.2 round down to 3 clients, and the three largest remainders, .8, .8 and
    .6 of the first level, get one more."""
    assert empty_levels(6, NON_UNIFORM) == [0.5]
    assert empty_levels(100, NON_UNIFORM) == []
    assert empty_levels(1, {1.0: 0.2, 0.4: 0.3, 0.1: 0.5, 0.05: 0.0}) == [1.0, 0.4]


@pytest.mark.parametrize("algorithm", [FIARSE, HeteroFL], ids=lambda each: each.__name__)
def test_a_run_says_at_the_start_which_levels_nobody_trains(algorithm, tmp_path):
    """They are judged all the same, so that seeds and numbers of clients compare."""
    method = algorithm(participation=1.0, ratio="width", capacities={1.0: 0.2, 0.5: 0.7, 0.25: 0.1})
    result = fedfi.run(method, tiny.small(clients=3), rounds=1, out=tmp_path / "a")
    notes = [line["text"] for line in read_lines(tmp_path / "a/events.jsonl") if line["event"] == "warning"]
    assert [note.partition(",")[0] for note in notes] == ["level 0.25: 0 of 3 clients"]
    assert "levels/0.25/accuracy" in result.metrics[-1]
    fedfi.run(method, tiny.small(clients=10), rounds=1, out=tmp_path / "b")
    assert not [line for line in read_lines(tmp_path / "b/events.jsonl") if line["event"] == "warning"]


@pytest.mark.parametrize("algorithm", [FjORD, HeteroFL], ids=lambda each: each.__name__)
def test_a_level_below_one_unit_a_group(algorithm):
    """The nearest valid level is rounded up, so that it is one when it is typed in."""
    with pytest.raises(
        InputError, match=r"^algorithm.capacities: ratio 0.001 is too small: .*nearest valid: "
    ) as caught:
        fedfi.run(algorithm(capacities={0.001: 1.0}), tiny.small(), rounds=1)
    nearest = float(str(caught.value).rpartition(": ")[2].rstrip(")"))
    assert not fedfi.run(algorithm(capacities={nearest: 1.0}), tiny.small(), rounds=1).failures
