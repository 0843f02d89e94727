"""What a model is fed and how many classes it tells apart, and the sizes that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedfi.arguments import expect, whole
from fedfi.errors import InputError

Width = Annotated[float, Field(gt=0, description="multiplies the numbers of channels and hidden units")]
Units = Annotated[int, Field(ge=1, description="number of units, layers or heads")]
Dropout = Annotated[float, Field(ge=0, lt=1, description="probability of dropping a hidden unit")]


@dataclass(frozen=True)
class InputSpec:
    """The shape of one example, and the number of classes.

    Attributes:
        kind: What an example is.
        shape: Shape of one example: ``(channels, height, width)``, ``(features,)`` or ``(tokens,)``; ``()`` for an
            item id of ratings.
        classes: Number of classes; of items for ratings.
        vocabulary: Number of token ids, for text.
        padding: The id that pads short texts, for text.

    Raises:
        InputError: If a size or a number is no whole number.
    """

    kind: Literal["image", "tabular", "text", "ratings"]
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
    padding: int | None = None

    def __post_init__(self) -> None:
        such = "such as (3, 32, 32) or (6,)"
        expect("InputSpec: shape", self.shape, (tuple, list), f"the sizes of one example, {such}")
        shape = tuple(whole(f"InputSpec: shape[{i}]", size, 0, "a size") for i, size in enumerate(self.shape))
        object.__setattr__(self, "shape", shape)
        for name in ("classes", "vocabulary", "padding"):
            if name == "classes" or getattr(self, name) is not None:
                object.__setattr__(self, name, whole(f"InputSpec: {name}", getattr(self, name), 0))

    def example(self, batch: int = 2) -> Tensor:
        """Inputs `[batch, *shape]` of this kind, always the same: normal numbers, or token ids in ``[0, vocabulary)``.

        They are for looking at how a network computes, not for learning.
        """
        rng = torch.Generator().manual_seed(0)
        if self.kind == "text":
            return torch.randint(self.vocabulary or 2, (batch, *self.shape), generator=rng)
        return torch.randn(batch, *self.shape, generator=rng)


def as_fed(example: Tensor, module: nn.Module) -> Tensor:
    """An example in a network's type of number; of token ids, the example itself."""
    kinds = (p.dtype for p in module.parameters() if p.is_floating_point())
    return example.to(next(kinds, example.dtype)) if example.is_floating_point() else example


def image_shape(spec: InputSpec, model: str) -> tuple[int, int, int]:
    """Channels, height and width, for a model that needs images.

    Args:
        spec: What the data are.
        model: Name of the model, for the error.

    Raises:
        InputError: If the data are no images.
    """
    if spec.kind != "image" or len(spec.shape) != 3:
        raise InputError(
            f"model {model!r} needs images (channels, height, width), got {spec.kind} data of shape {spec.shape}"
        )
    channels, height, width = spec.shape
    return channels, height, width


def scaled(count: int, width: float) -> int:
    """`count` channels or hidden units times a width, to the nearest whole number and at least 1.

    Args:
        count: Number at width 1.
        width: The multiplier, above 0.

    Raises:
        InputError: If the width is not a positive, finite number.
    """
    if not 0 < width < math.inf:
        raise InputError(f"width must be a positive number, got {width}")
    return max(1, round(count * width))
