"""ResNet-18 for small images (He, Zhang, Ren, Sun, CVPR 2016), with any of four normalisations and any width.

Deviations from the paper's ImageNet network: the stem is one 3x3 convolution of stride 1 without a max pool,
as is usual for 32 x 32 images. Without normalisation each of the eight branches, at He's scale, would add
twice the mean square that enters its block; its last convolution starts at a quarter of that scale, adding
an eighth, so that the signal's mean square grows by (1 + 1/8)^8 < e at most.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from fedfi.models.norms import Norm, norm_layer
from fedfi.models.shapes import InputSpec, Width, image_shape, scaled

_BRANCH_SCALE = 0.25  # of He's, without normalisation: 0.25 ** 2 * 2 = 1 / 8


def resnet18(spec: InputSpec, *, width: Width = 1.0, norm: Norm = "batch") -> nn.Module:
    """ResNet-18 with a 3x3 stem for small images; 11,173,962 parameters on 3 channels and 10 classes.

    Args:
        spec: Images; inputs ``[batch, channels, height, width]``, logits ``[batch, classes]``.
        width: Multiplies the numbers of channels (at least 1 each).
        norm: ``"batch"``; ``"static"``, batch norm without running statistics (see
            `fedfi.models.norms.recompute_statistics`); ``"group"``; or ``"none"``, where convolutions have
            biases instead.

    Raises:
        InputError: If the data are no images, or an option is out of range.
    """
    channels, _, _ = image_shape(spec, "resnet18")
    return ResNet18(channels, spec.classes, [scaled(count, width) for count in (64, 128, 256, 512)], norm)


class ResNet18(nn.Module):
    """A stem, four stages of two blocks, and a linear head on the mean over positions.

    Args:
        channels: Number of the image's channels.
        classes: Number of classes.
        widths: Number of channels of each of the four stages.
        norm: The normalisation after each convolution.
    """

    def __init__(self, channels: int, classes: int, widths: list[int], norm: Norm) -> None:
        super().__init__()
        first, second, third, fourth = widths
        self.stem = _conv_norm(channels, first, 3, 1, norm)
        self.stage1 = _stage(first, first, 1, norm)
        self.stage2 = _stage(first, second, 2, norm)
        self.stage3 = _stage(second, third, 2, norm)
        self.stage4 = _stage(third, fourth, 2, norm)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(fourth, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[batch, classes]`` of images ``[batch, channels, height, width]``."""
        maps = functional.relu(self.stem(images))
        maps = self.stage4(self.stage3(self.stage2(self.stage1(maps))))
        logits: Tensor = self.head(self.flatten(self.pool(maps)))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes.

    Args:
        before: Number of channels in.
        after: Number of channels out.
        stride: Stride of the first convolution and of the shortcut.
        norm: The normalisation after each convolution.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = _conv_norm(before, after, 3, stride, norm)
        self.second = _conv_norm(after, after, 3, 1, norm)
        if norm == "none":
            for parameter in self.second.parameters():  # the bias is zero
                parameter.data.mul_(_BRANCH_SCALE)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else _conv_norm(before, after, 1, stride, norm)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps ``[batch, after, height / stride, width / stride]`` of ``[batch, before, height, width]``."""
        branch = self.second(functional.relu(self.first(maps)))
        return functional.relu(branch + self.shortcut(maps))


def _stage(before: int, after: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(BasicBlock(before, after, stride, norm), BasicBlock(after, after, 1, norm))


def _conv_norm(before: int, after: int, kernel: int, stride: int, norm: Norm) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=norm == "none")
    # A norm undoes the scale going forward, so only the gradient's counts; without one the signal's does.
    mode: Literal["fan_in", "fan_out"] = "fan_in" if norm == "none" else "fan_out"
    nn.init.kaiming_normal_(conv.weight, mode=mode, nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    layers = nn.Sequential()
    layers.add_module("conv", conv)
    if norm != "none":
        layers.add_module("norm", norm_layer(norm, after))
    return layers
