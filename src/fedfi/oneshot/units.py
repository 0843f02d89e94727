"""The units of a channel group as rows of numbers, and putting them in another order, mixing or counting them.

Shape convention: U units of a group, D coordinates a unit: what all chosen axes hold of it, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedfi.channels import Group, Member, Wiring
from fedfi.errors import InputError
from fedfi.federation.exhibits import pooled
from fedfi.federation.packet import Tree

Orders = dict[str, Tensor]
"""For each group the old unit at each place `[U]`."""


def untied(wiring: Wiring, tree: Mapping[str, Tensor]) -> Tree:
    """The same tensors, each of a network's tied ones under its first name alone, by which groups go.

    Raises:
        InputError: If a tree, such as a state dict, has two values for one tied tensor.
    """
    found: Tree = {}
    for name, tensor in tree.items():
        first = wiring.aliases.get(name, name)
        if first in found and found[first] is not tensor and not torch.equal(found[first], tensor):
            raise InputError(f"{name!r} and {first!r} are one tensor of the network, but differ")
        found.setdefault(first, tensor)
    return found


def retied(wiring: Wiring, tree: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tree:
    """The inverse of `untied`: the tensors under the names of another tree, such as a state dict."""
    return {name: tree[wiring.aliases.get(name, name)] for name in like}


def rows(tree: Mapping[str, Tensor], members: Iterable[Member]) -> Tensor:
    """The units `[U, D]`: the slices of each member's tensor at the unit's positions."""
    parts = []
    for member in members:
        units = len(member.positions)
        tensor = tree[member.name].movedim(member.axis, 0)
        parts.append(tensor[member.positions.flatten()].reshape(units, -1))
    return torch.cat(parts, 1)


def reorder(tree: Tree, group: Group, order: Tensor) -> None:
    """Puts a group's old unit `order[i]` at place i, in place of the tree's tensors (which are not written to)."""
    if torch.equal(order, torch.arange(len(order))):
        return
    for member in group.members:
        if member.name in tree:
            tensor = tree[member.name]
            index = torch.arange(tensor.shape[member.axis])
            index[member.positions.flatten()] = member.positions[order].flatten()
            tree[member.name] = tensor.index_select(member.axis, index)


def mix(tree: Tree, group: Group, plan: Tensor) -> None:
    """Puts at place i of a group the mixture of old units of weights `plan[i]` (`[U, U]`, rows of mass 1).

    For a permutation matrix this is `reorder`.
    """
    for member in group.members:
        if member.name in tree and tree[member.name].is_floating_point():
            tensor = tree[member.name].movedim(member.axis, 0)
            units, width = member.positions.shape
            flat = member.positions.flatten()
            old = tensor[flat].reshape(units, -1)
            new = tensor.clone()
            new[flat] = (plan.to(old.dtype) @ old).reshape(units * width, *tensor.shape[1:])
            tree[member.name] = new.movedim(0, member.axis)


def check_regular(wiring: Wiring, purpose: str) -> None:
    """Checks that every axis of a group holds nothing but its units, in order, so that it can get another length.

    Raises:
        InputError: Naming the tensor and the group.
    """
    for group in wiring.groups:
        for m in group.members:
            regular = torch.arange(wiring.shapes[m.name][m.axis]).view(group.units, -1)
            if m.positions.shape != regular.shape or not torch.equal(m.positions.cpu(), regular):
                raise InputError(f"{m.name!r} holds more than the units of {group.name!r}, so it {purpose}")


def resize(tree: Tree, group: Group, plan: Tensor) -> None:
    """Puts at place i of a group, which gets U' units for its U, the mixture of weights `plan[i]` of old units.

    What reads the units is shared out instead, so that units in several places count once and units that share a
    place all count: columns of `plan` times U / U' add up to 1. Copies of a network with units that were split, or
    that are there twice, keep their function.

    Args:
        tree: Tensors whose axes of the group hold nothing but its units, in order (`check_regular`).
        group: The group, of U units.
        plan: `[U', U]`, rows of mass 1, columns of mass U' / U.
    """
    places, units = plan.shape
    for member in group.members:
        if member.name in tree and tree[member.name].is_floating_point():
            tensor = tree[member.name].movedim(member.axis, 0)
            moved = plan.to(tensor.dtype) @ tensor.reshape(units, -1)
            if member.role == "in":
                moved = moved * (units / places)
            shape = (places * member.positions.shape[1], *tensor.shape[1:])
            tree[member.name] = moved.reshape(shape).movedim(0, member.axis).contiguous()


def producers(wiring: Wiring, group: Group, done: set[str], names: Iterable[str]) -> list[Member]:
    """The axes by which the units of a group are told apart: what makes them, seen from inputs already in order.

    Args:
        wiring: All groups.
        group: The group.
        done: Names of the groups that are in order; a tensor with another axis in a group that is not is left out,
            unless no weight would remain.
        names: The tensors that count (those with a weight).

    Raises:
        InputError: If none of them makes the units.
    """
    allowed = set(names)
    made = [m for m in group.members if m.role != "in" and m.name in allowed]
    if not made:
        raise InputError(f"nothing that makes the units of {group.name!r} is weighted or named: they cannot be aligned")
    waiting: set[tuple[str, int]] = {
        (m.name, m.axis) for other in wiring.groups if other.name not in done for m in other.members
    }
    ready = [m for m in made if not any(n == m.name and axis != m.axis for n, axis in waiting)]
    return ready if any(m.name == w.name for m in ready for w in made if _is_weight(w, wiring)) else made


def _is_weight(member: Member, wiring: Wiring) -> bool:
    return len(wiring.shapes[member.name]) > 1


def identity(wiring: Wiring) -> Orders:
    """Every unit at its own place."""
    return {group.name: torch.arange(group.units) for group in wiring.groups}


_MOST_CELLS = 64
_MOST_GROUPS = 12


def matched(orders: Sequence[Mapping[str, Tensor]]) -> Tree:
    """How many parties' unit j is at place i, of each group `[places, units]` int32, for pages.

    Of wide groups, neighbours are taken together: at most 64 by 64 numbers a group. Of many groups, the first twelve.

    Args:
        orders: For each party and group the party's unit at each place, -1 where it has none.
    """
    found: Tree = {}
    for name in list(orders[0])[:_MOST_GROUPS] if orders else []:
        places = max(len(order[name]) for order in orders)
        units = max(places, 1 + max(int(order[name].max()) for order in orders))
        counts = torch.zeros(places, units, dtype=torch.int32)
        for order in orders:
            at = (order[name] >= 0).nonzero()[:, 0]
            counts[at, order[name][at]] += 1
        found[name] = pooled(pooled(counts, _MOST_CELLS).T, _MOST_CELLS).T.contiguous()
    return found


def moved(orders: Sequence[Orders]) -> dict[str, float]:
    """The share of units that are not at their own place: of each group, and of all as `""`; means over parties."""
    counts: dict[str, list[float]] = {}
    for order in orders:
        for name, places in order.items():
            here = counts.setdefault(name, [0.0, 0.0])
            here[0] += float((places != torch.arange(len(places))).sum())
            here[1] += len(places)
    total = [sum(pair[i] for pair in counts.values()) for i in (0, 1)]
    shares = {name: a / b for name, (a, b) in counts.items()}
    return {"": total[0] / total[1] if total[1] else 0.0, **shares}
