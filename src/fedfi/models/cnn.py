"""The convolutional network of the one-shot merging experiments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from fedfi.errors import InputError
from fedfi.models.norms import norm_layer
from fedfi.models.shapes import InputSpec, Width, image_shape, scaled

_SMALLEST = 16  # 16 - 4 = 12, pooled 6; 6 - 4 = 2, pooled 1


def cnn(
    spec: InputSpec, *, width: Width = 1.0, bias: bool = False, norm: Literal["none", "group"] = "none"
) -> nn.Module:
    """Two 5x5 convolutions (32, 64) and three linear layers (512, 128, classes), without biases or norms.

    Each convolution is followed by ReLU and a 2x2 max pool. 939,616 parameters on 3 x 32 x 32 and 10 classes.

    Args:
        spec: Images of at least 16 x 16; inputs ``[batch, channels, height, width]``,
            logits ``[batch, classes]``.
        width: Multiplies the numbers of channels and hidden units (at least 1 each).
        bias: Whether layers have biases.
        norm: ``"group"`` puts a GroupNorm after each convolution.

    Raises:
        InputError: If the data are no images or too small ones, or an option is out of range.
    """
    channels, *size = image_shape(spec, "cnn")
    if min(size) < _SMALLEST:
        raise InputError(
            f"model 'cnn' needs images of at least {_SMALLEST} x {_SMALLEST}, got {size[0]} x {size[1]}; "
            "'small_cnn' takes smaller ones"
        )
    first, second, third, fourth = (scaled(count, width) for count in (32, 64, 512, 128))
    height, breadth = (((side - 4) // 2 - 4) // 2 for side in size)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(((channels, first), (first, second)), start=1):
        layers[f"conv{number}"] = nn.Conv2d(before, after, 5, bias=bias)
        if norm != "none":
            layers[f"norm{number}"] = norm_layer(norm, after)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(second * height * breadth, third, bias=bias)
    layers["relu3"] = nn.ReLU()
    layers["fc2"] = nn.Linear(third, fourth, bias=bias)
    layers["relu4"] = nn.ReLU()
    layers["head"] = nn.Linear(fourth, spec.classes, bias=bias)
    return nn.Sequential(layers)
