"""What a model is fed and how many classes it tells apart, and the sizes that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedfi.errors import InputError


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
    """

    kind: Literal["image", "tabular", "text", "ratings"]
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
    padding: int | None = None


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
