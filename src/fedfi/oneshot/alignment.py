"""Bringing the units of several models into one order, by weighted squared distances.

`by_layers` is the published way: groups in the order of the computation, each aligned by what makes its units (weights,
biases, norms), seen from inputs that are in order already; alternation of exact assignment and weighted mean within a
group (`numerics.transport.barycentre`). In a residual network the units of a stream are told apart by the layers whose
inputs are in order when the stream is reached, its first ones.

`by_blocks` is block coordinate descent over all axes: one group after the other is assigned with everything else
fixed, counting what makes its units and what reads them, and the mean follows; until nothing changes. The objective of
the full model never increases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedfi.channels import Group, Member, Wiring
from fedfi.federation.packet import Tree
from fedfi.numerics.transport import PreparedCosts, assign, barycentre, objective, weighted_mean
from fedfi.oneshot.units import Orders, identity, producers, reorder, retied, rows, untied


@dataclass(frozen=True, eq=False)
class Aligned:
    """Models in one order.

    Attributes:
        models: Copies of the K models whose tensors are in the common order.
        weights: The same for their weights.
        orders: For each model and group, which old unit is at each place.
        objectives: For each group (`by_layers`) or pass (`by_blocks`) the objective before and after: before the first
            assignment, of the reference with every unit of the group at its place; of the mean in the end.
        unaligned: For each group (`by_layers`) the objective of the mean with every unit of the group at its place.
    """

    models: list[Tree]
    weights: list[Tree]
    orders: list[Orders]
    objectives: dict[str, tuple[float, float]]
    unaligned: dict[str, float] = field(default_factory=dict)


def by_layers(
    wiring: Wiring,
    models: Sequence[Mapping[str, Tensor]],
    weights: Sequence[Mapping[str, Tensor]],
    reference: int | Mapping[str, Tensor],
    *,
    iterations: int = 8,
    tolerance: float = 0.0,
) -> Aligned:
    """Aligns group after group in the order of the computation.

    Args:
        wiring: The groups.
        models: K models; every tensor of a group is brought along, those without a weight are not compared.
        weights: K trees of non-negative weights for some or all tensors, at least one weight of each group.
        reference: The position of the model that each group's alternation starts from, or another model.
        iterations: S, alternations a group.
        tolerance: Stop a group's alternation when its centre moves less (root mean square).

    Raises:
        InputError: If no tensor that makes the units of some group has weights.
    """
    copies, masses, orders = _copies(wiring, models, weights)
    done: set[str] = set()
    objectives, unaligned = {}, {}
    for group in wiring.groups:
        members = producers(wiring, group, done, masses[0])
        start = copies[reference] if isinstance(reference, int) else untied(wiring, reference)
        values, by = [rows(model, members) for model in copies], [rows(weight, members) for weight in masses]
        unaligned[group.name] = objective(weighted_mean(values, by), values, by)
        found = barycentre(
            rows(start, members),
            values,
            by,
            iterations=iterations,
            tolerance=tolerance,
        )
        for model, weight, order, places in zip(copies, masses, orders, found.assignments, strict=True):
            reorder(model, group, places)
            reorder(weight, group, places)
            order[group.name] = places
        objectives[group.name] = found.objectives[0], found.objectives[-1]
        done.add(group.name)
    return Aligned(_named(wiring, copies, models), _named(wiring, masses, weights), orders, objectives, unaligned)


def by_blocks(
    wiring: Wiring,
    models: Sequence[Mapping[str, Tensor]],
    weights: Sequence[Mapping[str, Tensor]],
    reference: int | Mapping[str, Tensor],
    *,
    passes: int = 8,
) -> Aligned:
    """Descends over groups, all axes of each counting; see the module.

    Args:
        wiring: The groups.
        models: K models.
        weights: K trees of non-negative weights.
        reference: What the first assignments are made to; the mean takes its place from then on.
        passes: Passes over all groups at most.
    """
    copies, masses, orders = _copies(wiring, models, weights)
    centre: Tree = dict(copies[reference]) if isinstance(reference, int) else untied(wiring, reference)
    centre = {name: centre[name].double() for name in masses[0]}
    objectives = {}
    for number in range(passes):
        before, changed = full_objective(centre, copies, masses), False
        for group in wiring.groups:
            members = [m for m in group.members if m.name in masses[0]]
            for model, weight, order in zip(copies, masses, orders, strict=True):
                places = _improved(centre, model, weight, group, members)
                if places is not None:
                    changed = True
                    order[group.name] = order[group.name][places]
                    reorder(model, group, places)
                    reorder(weight, group, places)
            for name in {m.name for m in members}:
                centre[name] = weighted_mean([m[name] for m in copies], [f[name] for f in masses])
        objectives[f"pass {number + 1}"] = before, full_objective(centre, copies, masses)
        if not changed:
            break
    return Aligned(_named(wiring, copies, models), _named(wiring, masses, weights), orders, objectives)


def full_objective(
    centre: Mapping[str, Tensor], models: Sequence[Mapping[str, Tensor]], weights: Sequence[Mapping[str, Tensor]]
) -> float:
    """The sum over models and weighted tensors of weights times squared distances from the centre."""
    return sum(
        float((weight[name].double() * (centre[name].double() - model[name].double()).square()).sum())
        for model, weight in zip(models, weights, strict=True)
        for name in weight
    )


def _copies(
    wiring: Wiring, models: Sequence[Mapping[str, Tensor]], weights: Sequence[Mapping[str, Tensor]]
) -> tuple[list[Tree], list[Tree], list[Orders]]:
    return [untied(wiring, m) for m in models], [untied(wiring, f) for f in weights], [identity(wiring) for _ in models]


def _named(wiring: Wiring, trees: Sequence[Tree], like: Sequence[Mapping[str, Tensor]]) -> list[Tree]:
    return [retied(wiring, tree, other) for tree, other in zip(trees, like, strict=True)]


def _improved(centre: Tree, model: Tree, weight: Tree, group: Group, members: list[Member]) -> Tensor | None:
    """An order of the group that lowers the model's part of the objective, or None."""
    costs = PreparedCosts.of(rows(model, members), rows(weight, members)).to(rows(centre, members))
    places = assign(costs)
    if torch.equal(places, torch.arange(len(places))):
        return None
    names = {m.name for m in members}
    moved, mass = {n: model[n] for n in names}, {n: weight[n] for n in names}
    before = full_objective(centre, [moved], [mass])
    reorder(moved, group, places)
    reorder(mass, group, places)
    # a tensor with two axes in the group is moved along both, which the costs do not see
    return places if full_objective(centre, [moved], [mass]) < before else None
