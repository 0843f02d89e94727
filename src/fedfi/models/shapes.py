"""What a model is fed and how many classes it tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class InputSpec:
    """The shape of one example, and the number of classes.

    Attributes:
        kind: What an example is.
        shape: Shape of one example: ``(channels, height, width)``, ``(features,)`` or ``(tokens,)``.
        classes: Number of classes.
        vocabulary: Number of token ids, for text.
        padding: The id that pads short texts, for text.
    """

    kind: Literal["image", "tabular", "text"]
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
    padding: int | None = None
