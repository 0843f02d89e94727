"""Cutting, writing back and reordering tensors along the axes of channel groups.

Shape convention: a unit is one of the n interchangeable sets of channels of a group; `positions` ``[units, width]``
are those of one axis of one tensor, ascending within a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Role = Literal["out", "in", "along"]


@dataclass(frozen=True, eq=False)
class Member:
    """What a group owns of one axis of one parameter or buffer.

    Args:
        name: The parameter or buffer.
        axis: The axis.
        positions: Positions of each unit along the axis, ``[units, width]``, ascending within a unit.
        role: ``"out"`` where the channels are made (a weight's rows, its bias), ``"in"`` where they are read
            (a weight's columns), ``"along"`` where they are only accompanied (norms, scales, added parameters).
    """

    name: str
    axis: int
    positions: Tensor
    role: Role


@dataclass(frozen=True, eq=False)
class Group:
    """Units that may be exchanged without changing the network's function, and may be left out.

    Args:
        name: The first parameter that makes the channels, in the order of the computation.
        units: Number of units.
        members: Every axis that belongs to them, in the order of the computation.
    """

    name: str
    units: int
    members: tuple[Member, ...]


Pieces = Mapping[str, Mapping[int, tuple[tuple[str, Tensor], ...]]]


def pieces(groups: tuple[Group, ...]) -> dict[str, dict[int, tuple[tuple[str, Tensor], ...]]]:
    """For each tensor and axis, the groups that own positions of it."""
    found: dict[str, dict[int, tuple[tuple[str, Tensor], ...]]] = {}
    for group in groups:
        for member in group.members:
            axes = found.setdefault(member.name, {})
            axes[member.axis] = (*axes.get(member.axis, ()), (group.name, member.positions))
    return found


def kept(owners: tuple[tuple[str, Tensor], ...], length: int, units: Mapping[str, Tensor]) -> Tensor | None:
    """Which positions of an axis stay, ``[length]``, or None if all do."""
    flags: Tensor | None = None
    for group, positions in owners:
        dropped = ~units[group]
        if bool(dropped.any()):
            if flags is None:
                flags = torch.ones(length, dtype=torch.bool)
            flags[positions[dropped].reshape(-1)] = False
    return flags


def cut(tensor: Tensor, axes: Mapping[int, Tensor]) -> Tensor:
    """The kept positions of each axis, in order; differentiable.

    Args:
        tensor: Any tensor.
        axes: Flags ``[length]`` for the axes that are cut.
    """
    for axis, flags in axes.items():
        tensor = tensor.index_select(axis, flags.nonzero()[:, 0].to(tensor.device))
    return tensor


def paste(full: Tensor, small: Tensor, axes: Mapping[int, Tensor]) -> Tensor:
    """A copy of `full` in which the kept positions hold the values of `small`; differentiable in both."""
    if not axes:
        return small.clone()
    index = []
    for axis, length in enumerate(full.shape):
        flags = axes.get(axis)
        places = torch.arange(length) if flags is None else flags.nonzero()[:, 0]
        shape = [1] * full.ndim
        shape[axis] = -1
        index.append(places.reshape(shape).to(full.device))
    return full.index_put(tuple(index), small.to(full.dtype))


def outer(shape: tuple[int, ...], axes: Mapping[int, Tensor]) -> Tensor:
    """The mask of a whole tensor: true where every axis is kept."""
    mask = torch.ones(shape, dtype=torch.bool)
    for axis, flags in axes.items():
        view = [1] * len(shape)
        view[axis] = -1
        mask &= flags.reshape(view)
    return mask


def reordered(
    tensor: Tensor, axes: Mapping[int, tuple[tuple[str, Tensor], ...]], order: Mapping[str, Tensor]
) -> Tensor:
    """A tensor whose unit j is the old unit ``order[group][j]``, for each group that has a part in it."""
    for axis, owners in axes.items():
        index = torch.arange(tensor.shape[axis])
        for group, positions in owners:
            if group in order:
                index[positions.reshape(-1)] = positions[order[group]].reshape(-1)
        tensor = tensor.index_select(axis, index.to(tensor.device))
    return tensor
