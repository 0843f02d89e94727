"""From ties to groups: components become units, and units of equal shape become groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfi.channels.shrinking import Extent
from fedfi.channels.slicing import Group, Member
from fedfi.channels.walking import Walk

_ALONE = "one unit that moves as a whole"


@dataclass(frozen=True, eq=False)
class Frozen:
    """Positions of an axis that are always kept.

    Args:
        name: The parameter or buffer.
        axis: The axis.
        positions: The positions, ``[count]``.
        reason: Why.
    """

    name: str
    axis: int
    positions: Tensor
    reason: str


@dataclass(frozen=True)
class Unit:
    """A component of the ledger: the positions, ascending, that it has on each axis (named by name and axis)."""

    component: int
    positions: dict[tuple[str, int], list[int]]

    @property
    def signature(self) -> tuple[tuple[tuple[str, int], int], ...]:
        """How many positions on which axis."""
        return tuple(sorted((axis, len(places)) for axis, places in self.positions.items()))


class Components:
    """The components of a walk, sorted into units and frozen ones.

    Args:
        walk: What the rules found.
    """

    def __init__(self, walk: Walk) -> None:
        ledger = walk.ledger
        self.walk = walk
        self.of = ledger.components()
        reasons = ledger.reasons(self.of)
        active = ledger.active()
        found: dict[int, Unit] = {}
        self.order = {axis: place for place, axis in enumerate(ledger.roles)}
        for (name, axis), start in ledger.starts.items():
            length = ledger.shapes[name][axis]
            flags = active[start : start + length]
            if not flags.any():
                continue
            ledger.claim(name, axis, "along")
            self.order.setdefault((name, axis), len(self.order))
            for place in np.flatnonzero(flags).tolist():
                component = int(self.of[start + place])
                unit = found.setdefault(component, Unit(component, {}))
                unit.positions.setdefault((name, axis), []).append(place)
        self.frozen = {c: (unit, reasons[c]) for c, unit in found.items() if c in reasons}
        self.units = [unit for c, unit in found.items() if c not in reasons]
        self._visits: dict[int, tuple[tuple[int, int], ...]] | None = None

    def visits(self, unit: Unit) -> tuple[tuple[int, int], ...]:
        """How often each operation's result holds a unit: finer than its signature."""
        if self._visits is None:
            seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for index, nodes in enumerate(self.walk.visits):
                components = self.of[nodes[nodes >= 0].numpy()]
                for component, count in zip(
                    *(a.tolist() for a in np.unique(components, return_counts=True)), strict=True
                ):
                    seen[component].append((index, count))
            self._visits = {component: tuple(counts) for component, counts in seen.items()}
        return self._visits.get(unit.component, ())

    def classes(self) -> list[list[Unit]]:
        """Units of equal signature, in the order of the computation."""
        found: dict[object, list[Unit]] = defaultdict(list)
        for unit in self.units:
            found[unit.signature].append(unit)
        return sorted(found.values(), key=lambda units: (self._first(units[0]), min(units[0].positions.values())))

    def finer(self, units: list[Unit]) -> list[list[Unit]]:
        """Units parted by the operations that see them."""
        found: dict[object, list[Unit]] = defaultdict(list)
        for unit in units:
            found[self.visits(unit)].append(unit)
        return list(found.values())

    def group(self, units: list[Unit], taken: Iterable[str]) -> Group:
        """A group of units of one signature; a name that is taken gets a number."""
        roles = self.walk.ledger.roles
        axes = sorted(units[0].positions, key=lambda axis: self.order[axis])
        units = sorted(units, key=lambda unit: [unit.positions[axis] for axis in axes])
        first = next((axis for axis in axes if roles[axis] == "out"), axes[0])
        base = name = first[0]
        count = 1
        while name in taken:
            count += 1
            name = f"{base}#{count}"
        members = tuple(
            Member(each, axis, torch.tensor([unit.positions[each, axis] for unit in units]), roles[each, axis])
            for each, axis in axes
        )
        return Group(name, len(units), members)

    def extents(self, groups: Iterable[Group], members: Mapping[str, list[Unit]]) -> tuple[Extent, ...]:
        """The sizes that normalisations know."""
        owner = {unit.component: group.name for group in groups for unit in members[group.name]}
        units = {group.name: group.units for group in groups}
        found = []
        for norm in self.walk.norms:
            inside = self.of[norm.nodes[norm.nodes >= 0].numpy()].tolist()
            found_here = Counter(component for component in inside if component in owner)
            counts: dict[str, list[int]] = defaultdict(list)
            for component, count in found_here.items():
                counts[owner[component]].append(count)
            widths = {
                name: each[0]
                for name, each in counts.items()
                if len(each) == units[name] and len(set(each)) == 1  # else not an axis of channels
            }
            found.append(Extent(norm.module, norm.axis, len(norm.nodes), widths))
        return tuple(found)

    def logits(self) -> tuple[Member, ...]:
        """The axes that carry the classes, ``[classes, 1]`` positions each."""
        nodes = self.walk.logits
        if nodes is None:
            return ()
        components = self.of[nodes.numpy()].tolist()
        if len(set(components)) != len(components) or any(c not in self.frozen for c in components):
            return ()
        rows = [self.frozen[c][0].positions for c in components]
        axes = Counter(axis for row in rows for axis, places in row.items() if len(places) == 1)
        roles = self.walk.ledger.roles
        return tuple(
            Member(*axis, torch.tensor([row[axis] for row in rows]), roles[axis])
            for axis in sorted(axes, key=lambda axis: self.order[axis])
            if axes[axis] == len(rows) and roles[axis] != "in"
        )

    def _first(self, unit: Unit) -> int:
        return min(self.order[axis] for axis in unit.positions)


def frozen(found: Iterable[tuple[Unit, str]]) -> tuple[Frozen, ...]:
    """Frozen positions, those of one axis and reason together."""
    places: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for unit, reason in found:
        for (name, axis), positions in unit.positions.items():
            places[name, axis, reason] += positions
    return tuple(
        Frozen(name, axis, torch.tensor(sorted(positions)), reason)
        for (name, axis, reason), positions in places.items()
    )


def alone(units: list[Unit]) -> list[tuple[Unit, str]]:
    """A class of one unit, which cannot be left out nor exchanged."""
    return [(unit, _ALONE) for unit in units]
