"""What an audit came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Audit:
    """What attacks came to.

    Attributes:
        name: Of the run.
        method: Of the algorithm.
        table: Numbers by name.
        pictures: Pairs (original, reconstruction) `[C, H, W]` in 0..1, with a caption.
    """

    name: str
    method: str
    table: dict[str, float] = field(default_factory=dict)
    pictures: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
