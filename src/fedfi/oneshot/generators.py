"""Networks that make inputs out of noise: `[B, noise]` to `[B, *shape]`, standardised as a client's inputs are."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

from fedfi.errors import InputError
from fedfi.models.shapes import InputSpec


def generator_for(spec: InputSpec, noise: int, width: int = 64) -> nn.Module:
    """A generator for images (by convolutions, DENSE's) or rows of a table (by linear layers).

    Args:
        spec: What is to be made.
        noise: Length of the noise.
        width: Channels of the last hidden layer, or a quarter of the hidden units.

    Raises:
        InputError: For text, which no such network makes.
    """
    check_made(spec)
    return (_Images if spec.kind == "image" else _Rows)(spec, noise, width)


def check_made(spec: InputSpec) -> None:
    """Checks that there is a generator for such inputs.

    Raises:
        InputError: For text, which none makes.
    """
    if spec.kind not in ("image", "tabular"):
        raise InputError(f"a generator makes images or rows of a table, not {spec.kind} of shape {spec.shape}")


class _Images(nn.Module):
    def __init__(self, spec: InputSpec, noise: int, width: int) -> None:
        super().__init__()
        channels, self.height, self.breadth = spec.shape
        self.small = (2 * width, math.ceil(self.height / 4), math.ceil(self.breadth / 4))
        self.start = nn.Linear(noise, math.prod(self.small))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(2 * width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, noise: Tensor) -> Tensor:
        made: Tensor = self.layers(self.start(noise).unflatten(1, self.small))
        if made.shape[2:] == (self.height, self.breadth):
            return made
        return functional.interpolate(made, (self.height, self.breadth))


class _Rows(nn.Sequential):
    def __init__(self, spec: InputSpec, noise: int, width: int) -> None:
        (features,) = spec.shape
        super().__init__(
            nn.Linear(noise, 4 * width),
            nn.BatchNorm1d(4 * width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(4 * width, features),
            nn.BatchNorm1d(features, affine=False),
        )
