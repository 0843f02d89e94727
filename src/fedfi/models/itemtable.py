"""The item table: what the methods of recommendation share of a model, an embedding of every item."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedfi.errors import InputError
from fedfi.models.shapes import InputSpec
from fedfi.room import check_room

_COPIES = 4
"""Of the table, before any user has one: the draw and its multiple, twice."""


class ItemTable(nn.Module):
    """One row of `dimension` numbers an item, from a normal distribution; `items` is its only parameter."""

    def __init__(self, items: int, dimension: int, scale: float) -> None:
        super().__init__()
        self.items = nn.Parameter(torch.randn(items, dimension) * scale)

    def forward(self, items: Tensor) -> Tensor:
        """The rows ``[batch, dimension]`` of item ids ``[batch]``."""
        return self.items[items]


def item_table(spec: InputSpec, *, dimension: int = 32, scale: float = 1.0) -> nn.Module:
    """An embedding of every item, for data of ratings; what scores it, the method brings.

    Args:
        spec: Ratings.
        dimension: Numbers an item, at least 1.
        scale: Standard deviation of the first values.

    Raises:
        InputError: If the data are no ratings, an option is out of range, or memory is too small.
    """
    if spec.kind != "ratings":
        raise InputError(f"model 'item_table' needs ratings, got {spec.kind} data of shape {spec.shape}")
    if dimension < 1:
        raise InputError(f"dimension = {dimension}: must be at least 1 (nearest valid: 1)")
    if scale < 0:
        raise InputError(f"scale = {scale}: must be at least 0 (nearest valid: 0)")
    what = f"{_COPIES} copies of {dimension} numbers of each of {spec.classes} items, which a run makes at least,"
    check_room(what, _COPIES * 4 * spec.classes * dimension)
    return ItemTable(spec.classes, dimension, scale)
