"""Git Re-Basin: Ainsworth, Hayase, Srinivasa, ICLR 2023, arXiv:2209.04836; weight matching and merging of many.

| paper | here |
|---|---|
| Algorithm 1, coordinate descent over permutations, layers in random order | `matched` |
| <W_A, P W_B>, all weights that a permutation touches | `units.rows` over all members of a channel group |
| Algorithm 3, MergeMany: match a random model to the mean of the others | `merge_many` |

Deviations: the channel groups of the traced network take the place of hand-written permutation specifications. All
models are first matched to that of the client with most examples (Algorithm 1), which is all there is for two of them;
with more, Algorithm 3 goes on from there. Means are by `weights`.
BatchNorm statistics are permuted, averaged and, where the server has examples, measured anew (`reestimate`), as the
authors advise after Jordan et al. (REPAIR, ICLR 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.arguments import expect
from fedfi.channels import Wiring
from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.numerics.transport import assign
from fedfi.oneshot.given import RNG, check_beside, check_models, check_names, check_range, check_wiring
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.units import Orders, identity, moved, reorder, retied, rows, untied
from fedfi.oneshot.uploads import Merged, Upload, largest, shares


def matched(
    model: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    names: Sequence[str],
    wiring: Wiring,
    rng: torch.Generator,
    *,
    passes: int = 100,
) -> tuple[Tree, Orders]:
    """A model whose units are put in the order that resembles a target's most, by inner products of weights.

    Args:
        model: The model.
        target: The model that it is matched to.
        names: The trained parameters.
        wiring: The channel groups.
        rng: Draws the order of the groups in each pass.
        passes: Passes over all groups at most; it stops when one changes nothing.

    Returns:
        The model in its new order, and the order.

    Raises:
        InputError: If the two, names and channel groups do not fit together.
    """
    check_models([model])
    check_beside("target", target, model)
    check_names(names, model, target=target)
    expect("rng", rng, torch.Generator, RNG)
    check_wiring(wiring, model)
    check_range("passes", passes, 1, whole=True)
    found, orders, known = untied(wiring, model), identity(wiring), set(names)
    target = untied(wiring, target)
    for _ in range(passes):
        changed = False
        for position in torch.randperm(len(wiring.groups), generator=rng).tolist():
            group = wiring.groups[position]
            members = [m for m in group.members if m.name in known]
            if not members:
                raise InputError(f"names: none belongs to the units of {group.name!r}, so they cannot be matched")
            here, there = rows(found, members).double(), rows(target, members).double()
            likeness = there @ here.T
            places = assign(-likeness)
            before, after = likeness.trace(), likeness[torch.arange(len(places)), places].sum()
            if after > before + 1e-12 * before.abs().clamp(min=1):
                reorder(found, group, places)
                orders[group.name] = orders[group.name][places]
                changed = True
        if not changed:
            break
    return retied(wiring, found, model), orders


def merge_many(
    models: Sequence[Mapping[str, Tensor]],
    names: Sequence[str],
    wiring: Wiring,
    party: Sequence[float],
    rng: torch.Generator,
    *,
    first: int = 0,
    passes: int = 100,
) -> tuple[list[Tree], list[Orders]]:
    """Brings K models into one order: each in turn is matched to the mean of the others, until none changes.

    Args:
        models: The models.
        names: The trained parameters.
        wiring: The channel groups.
        party: K weights in the means.
        rng: Draws orders of models and groups.
        first: The model that others are matched to at the start; of two models the one that stays.
        passes: At most so many, over models and over groups.

    Raises:
        InputError: If models, names and weights do not fit together.
    """
    check_models(models, party)
    check_names(names, models[0])
    check_wiring(wiring, models[0])
    expect("rng", rng, torch.Generator, RNG)
    check_range("first", first, 0, len(models) - 1, whole=True)
    found, orders = [dict(m) for m in models], [identity(wiring) for _ in models]
    for i in range(len(found)):
        if i != first:
            found[i], orders[i] = matched(found[i], found[first], names, wiring, rng, passes=passes)
    for _ in range(passes if len(found) > 2 else 0):
        changed = False
        for i in torch.randperm(len(found), generator=rng).tolist():
            rest = [j for j in range(len(found)) if j != i]
            target = mean([{n: found[j][n] for n in names} for j in rest], [party[j] for j in rest])
            model, moves = matched(found[i], target, names, wiring, rng, passes=passes)
            if any(moved([moves]).values()):
                found[i], changed = model, True
                orders[i] = {name: places[moves[name]] for name, places in orders[i].items()}
        if not changed:
            break
    return found, orders


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class GitReBasin(OneShot):
    """Models permuted into one basin by matching weights, then their mean."""

    passes: Annotated[int, Field(ge=1, description="passes over groups, and over models, at most")] = 100

    needs_channels: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Matches all models, then takes the mean."""
        party = shares(uploads, self.weights)
        models, orders = merge_many(
            [u.model for u in uploads],
            uploads[0].trained,
            context.server.wiring,
            party,
            context.rng,
            first=largest(uploads),
            passes=self.passes,
        )
        return Merged(mean(models, party), {"permuted": moved(orders)[""]}, orders=orders)
