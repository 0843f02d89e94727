import pytest
import torch
from torch import nn
from torchvision.models import resnet18 as reference

from fedfi.errors import InputError
from fedfi.models.norms import group_count
from fedfi.models.resnet18 import resnet18
from fedfi.models.shapes import InputSpec

CIFAR = InputSpec("image", (3, 32, 32), 10)
CHANNELS = 5 * (64 + 128 + 256 + 512)  # five norms a width: stem and stage 1; four and a shortcut after it


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters():
    """Convolutions: stem 27*64 = 1728; stage 1 4*9*64^2 = 147,456; a stage of c channels from c/2 has
    9*c*c/2 + 3*9*c^2 + c*c/2 = 32 c^2, so 32 (128^2 + 256^2 + 512^2) = 11,010,048. Norms: 2 for each of
    5 (64 + 128 + 256 + 512) = 4800 channels. Head: 513*10 = 5130. Together 11,173,962.
    """
    assert count(resnet18(CIFAR)) == 1728 + 147_456 + 11_010_048 + 2 * CHANNELS + 5130 == 11_173_962


@pytest.mark.parametrize("norm", ["static", "group"])
def test_other_norms_have_as_many_parameters(norm):
    assert count(resnet18(CIFAR, norm=norm)) == 11_173_962


def test_without_norms_a_bias_replaces_each_pair():
    assert count(resnet18(CIFAR, norm="none")) == 11_173_962 - CHANNELS


def test_same_function_as_torchvision():
    """torchvision's network with a 3x3 stem and no pool, given the same tensors in the same order."""
    torch.manual_seed(0)
    ours, theirs = resnet18(CIFAR).eval(), reference(num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    state = list(ours.state_dict().values())
    theirs.load_state_dict(dict(zip(theirs.state_dict(), state, strict=True)))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_names():
    assert [name for name, _ in resnet18(CIFAR, width=0.1).named_children()] == [
        "stem", "stage1", "stage2", "stage3", "stage4", "pool", "flatten", "head",
    ]  # fmt: skip


@pytest.mark.parametrize("norm", ["batch", "static", "group", "none"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8)])
def test_logits_and_gradients(shape, norm):
    """0.11 makes 7, 14, 28 and 56 channels."""
    torch.manual_seed(0)
    model = resnet18(InputSpec("image", shape, 7), width=0.11, norm=norm)
    logits = model(torch.randn(4, *shape))
    logits.square().sum().backward()
    assert logits.shape == (4, 7)
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_group_norms_divide_odd_widths():
    groups = [m for m in resnet18(CIFAR, width=0.11, norm="group").modules() if isinstance(m, nn.GroupNorm)]
    assert {m.num_channels: m.num_groups for m in groups} == {7: 1, 14: 7, 28: 14, 56: 28}
    assert all(m.num_groups == group_count(m.num_channels) for m in groups)


def test_without_norms_the_signal_keeps_its_scale():
    """Its mean square grows by e at most, less what zero padding takes; at He's scale by up to 3^8."""
    torch.manual_seed(0)
    model, x = resnet18(CIFAR, width=0.5, norm="none"), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        before = model.stem(x).relu()
        after = model.stage4(model.stage3(model.stage2(model.stage1(before))))
    assert 0.2 < after.square().mean() / before.square().mean() < 2.72


def test_other_data_are_refused():
    with pytest.raises(InputError, match="'resnet18' needs images"):
        resnet18(InputSpec("tabular", (13,), 2))
