from __future__ import annotations

import pytest
import torch
from tests import tiny
from torch import nn

from fedfi.channels import discover
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.models import InputSpec
from fedfi.models.cnn import cnn
from fedfi.models.mlp import mlp
from fedfi.models.resnet18 import resnet18
from fedfi.submodel.fedbrb import FedBRB, blocks, bounds, colours, runs_of, shift, spread_blocks

TABLE, IMAGES = InputSpec("tabular", (6,), 3), InputSpec("image", (3, 16, 16), 10)
NETWORKS = {
    "mlp": (TABLE, lambda: mlp(TABLE, hidden=(10, 12, 9))),
    "cnn": (IMAGES, lambda: cnn(IMAGES, width=0.25)),
    "resnet18": (IMAGES, lambda: resnet18(IMAGES, width=0.125)),
}


def test_runs_are_as_many_as_windows_fit_and_no_longer_than_one():
    assert [runs_of(w) for w in (1.0, 0.5, 0.3, 1 / 3, 0.1, 1 / 49)] == [1, 2, 4, 3, 10, 49]
    assert bounds(10, 4) == [0, 2, 5, 7, 10]


@pytest.mark.parametrize("runs", [2, 3, 4, 7, 16])
def test_three_colours_meet_in_all_pairs(runs):
    """The determinants of (1, 0), (0, 1) and (1, 1), taken in pairs, are 1, 1 and -1."""
    for one, other in ((0, 1), (0, 2), (1, 2)):
        met = {(shift(one, t, runs), shift(other, t, runs)) for t in range(runs**2)}
        assert len(met) == runs**2


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("width", [0.5, 0.25, 0.3])
def test_small_windows_reach_every_entry_within_the_square_of_the_runs(name, width):
    spec, make = NETWORKS[name]
    module = make()
    wiring = discover(module, spec.example())
    algorithm = FedBRB(capacities={width: 1.0}, ratio="width")
    names = [n for n, _ in module.named_parameters()]
    left = {n: torch.ones(wiring.shapes[n], dtype=torch.bool) for n in names}
    for round in range(runs_of(width) ** 2):
        units = algorithm.units(wiring, width, round, torch.Generator())
        assert {n: int(u.sum()) for n, u in units.items()} == wiring.counts(width)
        for n in names:
            left[n] &= ~wiring.mask(n, units)
    assert not any(bool(rest.any()) for rest in left.values())
    assert max(colours(wiring).values()) <= 2


def test_groups_that_meet_have_different_colours():
    spec, make = NETWORKS["resnet18"]
    wiring = discover(make(), spec.example())
    tones = colours(wiring)
    for name in wiring.shapes:
        owners = [(m.axis, g.name) for g in wiring.groups for m in g.members if m.name == name]
        assert all(tones[a] != tones[b] for i, a in owners for j, b in owners if i < j)


def test_blocks_follow_runs_and_keep_what_is_not_cut():
    """Five units of two positions in two runs: 2 and 3 units, hence 4 and 6 positions; the last position is whole."""
    found = blocks(11, [torch.arange(10).reshape(5, 2)], 2)
    assert [part.tolist() for part in found] == [[[0, 1, 2, 3]], [[4, 5, 6, 7, 8, 9]], [[10]]]


def test_an_untrained_block_moves_towards_the_weighted_mean_of_trained_ones():
    """Blocks of 1 x 1: 2 held by three and 6 by one have the mean 3; at rate 1/2 the others, 0 and 8, move to 1.5 and
    5.5. A row that is not cut has a mean of its own, here of the one block that is held."""
    values = torch.tensor([[2.0, 0.0], [8.0, 6.0]])
    counts = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    cut, whole = blocks(2, [torch.tensor([[0], [1]])], 2), blocks(2, [], 2)
    moved = values.clone()
    spread_blocks(moved, counts, [cut, cut], 0.5)
    assert torch.equal(moved, torch.tensor([[2.0, 1.5], [5.5, 6.0]]))
    moved = values.clone()
    spread_blocks(moved, counts, [whole, cut], 0.5)
    assert torch.equal(moved, torch.tensor([[2.0, 1.0], [7.0, 6.0]]))


def test_blocks_of_which_nobody_holds_the_place_stay():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    moved = values.clone()
    spread_blocks(moved, torch.tensor([0.0, 1.0, 0.0, 0.0]), [blocks(4, [torch.arange(4)[:, None]], 2)], 1.0)
    assert torch.equal(moved, torch.tensor([1.0, 2.0, 3.0, 2.0]))


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_a_round_moves_what_nobody_held_by_the_broadcast_alone(rate):
    def model():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    task = tiny.small(model=model)
    algorithm = FedBRB(participation=1.0, capacities={0.5: 1.0}, ratio="width", broadcast_rate=rate)
    before = algorithm.init(task, keyed_generator(0, "server", "init")).model.tree()
    result = run(algorithm, task, rounds=1)
    assert result.failures == []
    after = result.model["2.weight"]
    held = after[:4, :4]
    for rows in (slice(0, 4), slice(4, 8)):
        for columns in (slice(0, 4), slice(4, 8)):
            if rows.start or columns.start:
                old = before["2.weight"][rows, columns]
                torch.testing.assert_close(after[rows, columns], old + rate * (held - old))
    if not rate:
        assert torch.equal(after[4:], before["2.weight"][4:])
    assert not torch.equal(held, before["2.weight"][:4, :4])


@pytest.mark.parametrize(
    ("options", "said"),
    [({"broadcast_rate": 1.5}, "at most 1"), ({"broadcast_rate": -0.1}, "at least 0")],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        FedBRB(**options)
