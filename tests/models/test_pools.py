import pytest
import torch
from torch import nn

from fedfi.errors import InputError
from fedfi.models import InputSpec, build
from fedfi.models.pools import norm_parameter_names, selection_pools


class OwnNorm(nn.LayerNorm):
    pass


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        OwnNorm(4),
    ],
)
def test_every_kind_of_norm(norm):
    assert norm_parameter_names(nn.Sequential(nn.Linear(4, 4), norm)) == {"1.weight", "1.bias"}
    assert norm_parameter_names(norm) == {"weight", "bias"}


def test_rms_norm_has_a_weight_only():
    assert norm_parameter_names(nn.Sequential(nn.RMSNorm(4))) == {"0.weight"}


def test_order_frozen_and_own_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.words = nn.Embedding(5, 4)
            self.norm = nn.LayerNorm(4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.head = nn.Linear(4, 2)

    assert selection_pools(Net()) == [["scale", "words.weight", "head.weight", "head.bias"]]


def test_pool_of_small_cnn():
    model = build("small_cnn", InputSpec("image", (3, 32, 32), 10), {})
    assert selection_pools(model) == [[
        "conv1.weight", "conv2.weight", "conv3.weight", "fc.weight", "fc.bias", "head.weight", "head.bias",
    ]]  # fmt: skip


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([["weight"], ["biass"]], "unknown parameter .biass.; did you mean .bias."),
        ([["weight"], ["bias", "weight"]], "names 'weight' twice"),
    ],
)
def test_a_module_names_its_own_pools(pools, message):
    class Net(nn.Linear):
        def selection_pools(self):
            return pools

    with pytest.raises(InputError, match=message):
        selection_pools(Net(2, 2))
    pools[:] = [["weight"], []]
    assert selection_pools(Net(2, 2)) == [["weight"]]


@pytest.mark.parametrize("norm", ["batch", "static", "group"])
def test_pool_of_resnet18(norm):
    """20 convolutions (stem, 16 in blocks, 3 shortcuts) and the head's two; the 20 norms are left out."""
    model = build("resnet18", InputSpec("image", (3, 32, 32), 10), {"width": 0.1, "norm": norm})
    [pool] = selection_pools(model)
    assert len(pool) == 22
    assert (pool[0], pool[-2:]) == ("stem.conv.weight", ["head.weight", "head.bias"])
    assert norm_parameter_names(model) == {name for name, _ in model.named_parameters()} - set(pool)
