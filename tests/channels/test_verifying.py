"""The check tells right groups from wrong ones, and finds the wrong ones."""

from __future__ import annotations

import torch
from tests.channels import nets
from torch import nn

from fedfi.channels.slicing import Group, Member
from fedfi.channels.verifying import Check


def group(name, *members):
    """Single channels: unit j is position j."""
    found = [Member(each, axis, torch.arange(length)[:, None], "along") for each, axis, length in members]
    return Group(name, found[0].positions.shape[0], tuple(found))


def test_the_wrong_ones_are_found():
    """Zero biases and fresh statistics would hide what the second, third and fourth group miss."""
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4), nn.Linear(4, 7), nn.Linear(7, 3))
    for each in module:
        nn.init.zeros_(each.bias)
    norm = [("1.weight", 0, 6), ("1.bias", 0, 6), ("1.running_mean", 0, 6), ("1.running_var", 0, 6)]
    first = [("0.weight", 0, 6), ("0.bias", 0, 6)]
    whole = group("whole", *first, *norm, ("2.weight", 1, 6))
    check = Check(module, nets.tensors(module), nets.rows(4, 5))
    assert check.holds((whole,))
    for missing in range(7):
        members = [*first, *norm, ("2.weight", 1, 6)]
        members.pop(missing)
        assert not check.holds((group("less", *members),))
    bad = group("bad", ("2.weight", 0, 4), ("3.weight", 1, 4))  # without its bias
    good = group("good", ("3.weight", 0, 7), ("3.bias", 0, 7), ("4.weight", 1, 7))
    assert check.failing((whole, bad, good)) == [bad]


def test_a_module_that_makes_single_precision_inside():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, rows):
            return self.head(self.first(rows.float()) @ torch.eye(6, dtype=torch.float32))

    module = Single()
    check = Check(module, nets.tensors(module), nets.rows(4, 5))
    assert check.holds(())
    assert not check.holds((group("bad", ("first.weight", 0, 6)),))


def test_infinite_outputs_do_not_hide_what_is_wrong():
    """The tolerance is relative to the largest finite number: with -inf it would be infinite."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

        def forward(self, rows):
            return self.head(self.first(rows)) + self.mask

    module = Masked()
    check = Check(module, nets.tensors(module), nets.rows(4, 5))
    whole = [("first.weight", 0, 6), ("first.bias", 0, 6), ("head.weight", 1, 6)]
    assert check.holds((group("good", *whole),))
    assert not check.holds((group("bad", *whole[:2]),))
