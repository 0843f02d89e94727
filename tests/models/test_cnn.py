import pytest
import torch
from torch import nn

from fedfi.errors import InputError
from fedfi.models.cnn import cnn
from fedfi.models.shapes import InputSpec, scaled


def image(channels, size, classes=10):
    return InputSpec("image", (channels, size, size), classes)


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters():
    """32 -> 28 -> 14 -> 10 -> 5: 3*32*25 + 32*64*25 + (64*5*5)*512 + 512*128 + 128*10 = 939,616."""
    assert count(cnn(image(3, 32))) == 2400 + 51_200 + 819_200 + 65_536 + 1280 == 939_616


def test_biases():
    """One for each channel and unit: 32 + 64 + 512 + 128 + 10 = 746."""
    assert count(cnn(image(3, 32), bias=True)) == 939_616 + 746


def test_group_norms():
    """A weight and a bias for each channel: 2 (32 + 64) = 192; 16 groups of 2, and 32 groups of 2."""
    model = cnn(image(3, 32), norm="group")
    assert count(model) == 939_616 + 192
    assert [m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)] == [16, 32]


def test_width_halves_channels_and_units():
    """16 and 32 channels, 256 and 64 units: 3*16*25 + 16*32*25 + (32*5*5)*256 + 256*64 + 64*10."""
    assert count(cnn(image(3, 32), width=0.5)) == 1200 + 12_800 + 204_800 + 16_384 + 640


def test_width_keeps_at_least_one():
    """32, 64 and 128 at 0.001 round to 0; 512 to 1: 3*25 + 25 + 25 + 1 + 10."""
    assert count(cnn(image(3, 32), width=0.001)) == 136
    assert scaled(32, 0.001) == 1


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28), (1, 16), (2, 17)])
def test_logits(channels, size):
    assert cnn(image(channels, size), width=0.25)(torch.zeros(2, channels, size, size)).shape == (2, 10)


def test_images_that_are_not_square():
    spec = InputSpec("image", (1, 16, 32), 3)
    assert cnn(spec, width=0.25)(torch.zeros(2, 1, 16, 32)).shape == (2, 3)


@pytest.mark.parametrize("size", [8, 15])
def test_too_small(size):
    with pytest.raises(InputError, match=f"at least 16 x 16, got {size} x {size}"):
        cnn(image(1, size))


@pytest.mark.parametrize("width", [0.0, -1.0, float("inf"), float("nan")])
def test_width_must_be_positive(width):
    with pytest.raises(InputError, match="width must be a positive number"):
        cnn(image(3, 32), width=width)


def test_other_data_are_refused():
    with pytest.raises(InputError, match=r"'cnn' needs images .* got tabular data of shape \(13,\)"):
        cnn(InputSpec("tabular", (13,), 2))
