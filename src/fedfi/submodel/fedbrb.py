"""FedBRB: Xu, Xu, Liao, Zheng, Chen, FedBRB: An Effective Solution to the Small-to-Large Scenario in
Device-Heterogeneity Federated Learning, arXiv:2402.17202; Liao et al., IEEE Transactions on Mobile Computing 2025.

**A reconstruction.** What was at hand of the paper is its abstract: the model is seen as blocks, small local models
train all blocks of it by block-wise rolling, and trained parameters are broadcast, weighted, to the entire space.
Everything below that is exact is ours, so deviations from the paper cannot be listed.

| paper | here |
|---|---|
| block | one of P x P parts of a parameter cut along both axes, into P = ceil(1 / smallest width) runs of units each |
| block-wise rolling | `units`: ceil(w n) units of each group from the first of run s on, s by `shift` |
| all blocks are trained | P^2 rounds visit every pair of runs of every two groups that meet in a parameter |
| aggregation of a block | `holders.HolderMean`, entry by entry |
| weighted broadcast | `broadcast`: x <- x + lambda (b - x) where nobody held x |

How windows roll. Two windows that roll alike meet along a diagonal only, as FedRolex's do. So groups that meet in a
parameter get different colours, and a group of colour c is at run (a t + b floor(t / P)) mod P in round t, with (a, b)
= (1, 0), (0, 1), (1, 1), (1, 2), ... Of two colours whose pairs have a determinant coprime to P, every pair of runs
comes once in P^2 rounds. That holds of any two of the first three colours, which chains, residual networks among them,
do with; where four groups meet each other in pairs, an even P leaves blocks out. A parameter that reads and
makes the channels of one and the same group has its band of blocks visited, as in FedRolex.

What is broadcast. b is the mean of the entries at the same place in the other blocks of the same shape of that
parameter, weighted by their numbers of holders; a bias or norm has blocks along its one axis. Entries that were held
keep their mean, and with lambda = 0 what nobody held stays bit-identical. Running statistics are not broadcast.

How much. lambda = 1 takes the abstract at its word. It makes the blocks alike, which in trials on a toy helped much
where every client was small, the paper's scenario, and harmed where some were whole: rounds without them undid what
they had learnt. The default, 0.1, lies between; it is ours.

All clients share a round's runs; a wider client's window begins with the same run and reaches over the next ones. P
follows from the smallest level with a share of the clients, also where rounding leaves none at it; at a single level of
ratio 1 the method is federated averaging with uniform weights. HeteroFL's devices (`scaler`, `masked_loss`,
`label_rows`) are off unless asked for.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product
from typing import Annotated, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.channels import Units, Wiring
from fedfi.federation.algorithm import CONFIG
from fedfi.submodel.capacities import held_levels
from fedfi.submodel.model import Model
from fedfi.submodel.sizing import widths
from fedfi.submodel.structured import Structured, StructuredState


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedBRB(Structured):
    """Windows of channels that roll over every pair of blocks; blocks left out move towards trained ones."""

    broadcast_rate: Annotated[
        float, Field(ge=0, le=1, description="how far lambda a block that nobody held moves to the trained ones' mean")
    ] = 0.1

    def units(self, wiring: Wiring, width: float, round: int, rng: torch.Generator) -> Units:
        """As many as the width says, from the first of the round's run on."""
        runs, found = self._runs(wiring), {}
        prefix, tones = wiring.prefix(width), colours(wiring)
        for name, units in wiring.sizes.items():
            start = bounds(units, runs)[shift(tones[name], round, runs)]
            found[name] = prefix[name].roll(start)
        return found

    def broadcast(self, state: StructuredState, model: Model, count: Tensor) -> Model:
        """Moves entries that nobody held towards those at the same place in trained blocks."""
        runs = runs_of(state.widths[min(held_levels(self.capacities))])
        if not self.broadcast_rate or runs == 1:
            return model
        vector = model.vector.clone()
        values, counts = model.layout.split(vector), model.layout.split(count)
        owners: dict[tuple[str, int], list[Tensor]] = {}
        for group in state.wiring.groups:
            for member in group.members:
                owners.setdefault((member.name, member.axis), []).append(member.positions)
        for name, value in values.items():
            axes = [blocks(n, owners.get((name, axis), []), runs) for axis, n in enumerate(value.shape)]
            spread_blocks(value, counts[name], axes, self.broadcast_rate)
        return replace(model, vector=vector)

    def _runs(self, wiring: Wiring) -> int:
        ratio = min(held_levels(self.capacities))
        return runs_of(widths(self.ratio, [ratio], wiring)[ratio])


def runs_of(width: float) -> int:
    """P, the number of runs of an axis: ceil(1 / width), as floats go."""
    return math.ceil(1 / width - 1e-9)


def bounds(units: int, runs: int) -> list[int]:
    """Where each run begins, and where the last one ends `[runs + 1]`; a run has at most ceil(units / runs) units."""
    return [run * units // runs for run in range(runs + 1)]


def shift(colour: int, round: int, runs: int) -> int:
    """The run at which a group of this colour is in a round."""
    first, second = [(1, 0), (0, 1)][colour] if colour < 2 else (1, colour - 1)
    return (first * round + second * (round // runs)) % runs


def colours(wiring: Wiring) -> dict[str, int]:
    """A colour for each group, different for any two that meet in a parameter, on different axes of it."""
    axes: dict[str, dict[int, set[str]]] = {}
    for group in wiring.groups:
        for member in group.members:
            axes.setdefault(member.name, {}).setdefault(member.axis, set()).add(group.name)
    near: dict[str, set[str]] = {group.name: set() for group in wiring.groups}
    for owners in axes.values():
        for axis, names in owners.items():
            others = {name for other, found in owners.items() if other != axis for name in found}
            for name in names:
                near[name] |= others - {name}
    found: dict[str, int] = {}
    while len(found) < len(near):  # the most constrained first (DSATUR), which needs two colours where two do
        name = max(
            (n for n in near if n not in found),
            key=lambda n: (len({found[m] for m in near[n] & found.keys()}), len(near[n])),
        )
        taken = {found[m] for m in near[name] if m in found}
        found[name] = next(c for c in range(len(near)) if c not in taken)
    return found


def blocks(length: int, owners: list[Tensor], runs: int) -> list[Tensor]:
    """The blocks of an axis: for each group and each size of its runs the positions of each run `[runs, size]`.

    Args:
        length: Of the axis.
        owners: Positions `[units, width]` of each group that cuts it.
        runs: Number of runs.
    """
    rest, found = torch.ones(length, dtype=torch.bool), []
    for positions in owners:
        rest[positions.reshape(-1)] = False
        edges = bounds(len(positions), runs)
        parts = [positions[a:b].reshape(-1) for a, b in pairwise(edges) if a < b]
        for size in dict.fromkeys(len(part) for part in parts):
            found.append(torch.stack([part for part in parts if len(part) == size]))
    if rest.any():
        found.append(rest.nonzero().T)
    return found


def spread_blocks(values: Tensor, counts: Tensor, axes: list[list[Tensor]], rate: float) -> None:
    """Moves entries of no holder, in place, towards the holders' mean at the same place in the other blocks.

    Args:
        values: A parameter of any shape.
        counts: Number of holders of each entry.
        axes: The blocks of each axis, as `blocks` makes them.
        rate: How far, in [0, 1].
    """
    dims = values.ndim
    for family in product(*axes):
        if math.prod(len(part) for part in family) == 1:
            continue
        index = []
        for axis, part in enumerate(family):
            view = [1] * (2 * dims)
            view[axis], view[dims + axis] = part.shape
            index.append(part.reshape(view))
        value, count = values[tuple(index)], counts[tuple(index)]  # [blocks of each axis, size of each axis]
        every = tuple(range(dims))
        total, weight = (value * count).sum(every, keepdim=True), count.sum(every, keepdim=True)
        moved = value + rate * (total / weight.clamp_min(1) - value)
        values[tuple(index)] = torch.where((count == 0) & (weight > 0), moved, value).to(value.dtype)
