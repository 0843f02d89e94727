"""ResNet-18 for small images (He, Zhang, Ren, Sun, CVPR 2016), with any of four normalisations and any width.

Deviations from the paper's ImageNet network: the stem is one 3x3 convolution of stride 1 without a max pool, as is
usual for 32 x 32 images. Without normalisation the branches of the eight blocks would double the variance eight
times; their last convolutions start at 8 ** -0.5 of He's scale instead, which keeps the sum within a factor of e.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedfi.models.norms import Norm, norm_layer
from fedfi.models.shapes import InputSpec, image_shape, scaled

_BLOCKS = 8


def resnet18(spec: InputSpec, *, width: float = 1.0, norm: Norm = "batch") -> nn.Module:
    """ResNet-18 with a 3x3 stem for small images; 11,173,962 parameters on 3 channels and 10 classes.

    Args:
        spec: Images; inputs ``[batch, channels, height, width]``, logits ``[batch, classes]``.
        width: Multiplies the numbers of channels (at least 1 each).
        norm: ``"batch"``; ``"static"``, batch norm without running statistics (see `norms.recompute_statistics`);
            ``"group"``; or ``"none"``, where convolutions have biases instead.

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
        return self.head(self.flatten(self.pool(maps)))


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
        self.second = _conv_norm(after, after, 3, 1, norm, scale=_BLOCKS**-0.5 if norm == "none" else 1.0)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else _conv_norm(before, after, 1, stride, norm)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps ``[batch, after, height / stride, width / stride]`` of maps ``[batch, before, height, width]``."""
        branch = self.second(functional.relu(self.first(maps)))
        return functional.relu(branch + self.shortcut(maps))


def _stage(before: int, after: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(BasicBlock(before, after, stride, norm), BasicBlock(after, after, 1, norm))


def _conv_norm(
    before: int, after: int, kernel: int, stride: int, norm: Norm, scale: float = 1.0
) -> nn.Sequential:
    bias = norm == "none"
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=bias)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    conv.weight.data.mul_(scale)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    layers = nn.Sequential()
    layers.add_module("conv", conv)
    if not bias:
        layers.add_module("norm", norm_layer(norm, after))
    return layers
