"""Smaller modules against a dense reference, and those that cannot be made."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from tests.channels import nets
from torch import nn
from torch.nn import functional

from fedfi.channels import changed_attributes, discover
from fedfi.errors import InputError
from fedfi.models import InputSpec
from fedfi.models.cnn import cnn
from fedfi.models.resnet18 import resnet18

SPEC = InputSpec("image", (3, 16, 16), 10)


def dense(wiring, module, units):
    """The full network in which nobody reads a dropped unit."""
    reference = copy.deepcopy(module)
    tree = nets.tensors(reference)
    for group in wiring.groups:
        for member in group.members:
            if member.role == "in":
                dropped = member.positions[~units[group.name]].flatten()
                tree[member.name].data.index_fill_(member.axis, dropped, 0)
    return reference


CASES = {
    "cnn": (lambda: cnn(SPEC, bias=True, width=0.5), lambda: nets.images(16)),
    "resnet18": (lambda: resnet18(SPEC, norm="none", width=0.25), lambda: nets.images(16)),
    "concatenated": (nets.Concatenated, lambda: nets.images(6)),
    "tied": (nets.Tied, lambda: nets.ids(11, 2, 5)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [0.75, 0.5, 0.2])
def test_equals_the_dense_network_whose_dropped_units_nobody_reads(case, width):
    """A tied embedding reads its own stream: dropping it there zeroes the head's columns alike."""
    module, example = CASES[case][0]().double().eval(), CASES[case][1]()
    example = example.double() if example.is_floating_point() else example
    wiring = discover(module, example)
    units = wiring.random(width, torch.Generator().manual_seed(6))
    small = wiring.shrink(module, units)
    reference = dense(wiring, module, units)
    if case == "tied":
        dropped = next(iter(units.values()))
        reference.embedding.weight.data[:, ~dropped] = 0
    with torch.no_grad():
        torch.testing.assert_close(nets.call(small, example), nets.call(reference, example), rtol=1e-10, atol=1e-12)


def test_heads_equal_the_dense_network():
    """Heads and hidden units of a vision transformer, whose norms see the whole stream."""
    from tests.channels.test_networks import vision_transformer

    module, example = nets.randomise(vision_transformer()).double().eval(), nets.images(16).double()
    wiring = discover(module, example)
    units = wiring.full()
    for name in units:
        if name != "conv_proj.weight":
            units[name] = wiring.random(0.5, torch.Generator().manual_seed(7))[name]
    small = wiring.shrink(module, units)
    with torch.no_grad():
        expected = nets.call(dense(wiring, module, units), example)
        torch.testing.assert_close(nets.call(small, example), expected, rtol=1e-9, atol=1e-11)


def test_a_size_fixed_in_the_code():
    """The view wants 24 numbers an image and gets 12 of 3 channels, a batch of one; the layer reads 12."""
    module = nets.HardView()
    wiring = discover(module, nets.images(4, 1))
    with pytest.raises(
        InputError, match=r"HardView does not work with fewer channels.*head.*\[3, 12\].*fixed in its code"
    ):
        wiring.shrink(module, wiring.prefix(0.5))


def test_heads_cut_in_other_places():
    """Half the stream and half the heads: the reshape finds four heads of half the size, and runs.

    With the number of heads put right it finds two of the right size. With one head and 3/4 of the stream it
    cannot, and says so.
    """
    module = nets.Misleading()
    wiring = discover(module, nets.rows(2, 3, 5))
    assert [group.units for group in wiring.groups] == [16, 4]
    units = wiring.prefix(0.5)
    small = wiring.shrink(module, units)
    assert small.heads == 2
    with torch.no_grad():
        inner = small.qkv(small.enter(nets.rows(2, 3, 5)))
        full = module.qkv.weight[wiring.mask("qkv.weight", units)].reshape(24, 8)
        assert inner.shape == (2, 3, 24)
        assert torch.equal(full, small.qkv.weight)
    units["qkv.weight"] = torch.tensor([True, False, False, False])
    with pytest.raises(InputError, match="does not work with fewer channels"):
        wiring.shrink(module, units)


def test_tensors_are_copies_and_the_module_is_left_alone():
    module = nets.Depthwise().train()
    module.first.bias.requires_grad_(False)
    wiring = discover(module, nets.images(6))
    before = {name: tensor.clone() for name, tensor in nets.tensors(module).items()}
    for units in (wiring.full(), wiring.prefix(0.5)):
        small = wiring.shrink(module, units)
        assert small.training
        assert small.first.weight.requires_grad
        assert not small.first.bias.requires_grad
        for tensor in nets.tensors(small).values():
            tensor.data.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in nets.tensors(module).items())
    assert (small.deep.groups, small.deep.in_channels, small.deep.out_channels) == (3, 3, 6)
    assert small.norm.num_features == 6


def test_another_module_than_the_one_discovered():
    wiring = discover(nets.Depthwise(), nets.images(6))
    with pytest.raises(InputError, match="lacks"):
        wiring.shrink(nets.Concatenated(), wiring.full())
    wide = nets.Depthwise()
    wide.last = nn.Conv2d(12, 5, 1)
    with pytest.raises(InputError, match=r"'last.weight' has shape \[5, 12, 1, 1\], expected \[4, 12, 1, 1\]"):
        wiring.shrink(wide, wiring.full())


def test_transposed_convolutions():
    """Blocks of a grouped one: inputs 2 g, 2 g + 1 and outputs 3 g to 3 g + 2."""
    module = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.ConvTranspose2d(6, 5, 2), nn.Conv2d(5, 2, 1)
    )
    wiring = discover(module, nets.images(4))
    assert [group.units for group in wiring.groups] == [2, 5]
    nets.check(wiring, module, nets.images(4))


def test_it_is_quick():
    """In seconds of this process's own time, as other processes may take the rest."""
    model = resnet18(InputSpec("image", (3, 32, 32), 10))
    start = time.process_time()
    wiring = discover(model, nets.images())
    assert time.process_time() - start < 5
    wiring.shrink(model, wiring.prefix(0.5))
    start = time.process_time()
    wiring.shrink(model, wiring.rolled(0.5, 1))
    assert time.process_time() - start < 0.5


class Settings(nn.Module):
    """Sizes that no tensor's shape shows: groups of a norm and a convolution, heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.attention, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 3)

    def forward(self, images):
        tokens = self.deep(functional.relu(self.norm(self.stem(images)))).flatten(2).transpose(1, 2)
        return self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


def test_what_slicing_changed_beside_tensors():
    """Half the groups of the norm with half the channels; a depthwise convolution's groups are its channels."""
    module = Settings()
    wiring = discover(module, nets.images(4, 1))
    small = wiring.shrink(module, wiring.prefix(0.5))
    changed = changed_attributes(module, small)
    assert changed["norm"] == {"num_groups": 2, "num_channels": 8}
    assert changed["deep"]["groups"] == 8
    assert changed["attention"]["num_heads"] == 2
    assert "training" not in changed.get("", {})
    assert changed_attributes(module, copy.deepcopy(module)) == {}
