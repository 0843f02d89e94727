"""OTFusion: Singh, Jaggi, Model fusion via optimal transport, NeurIPS 2020, arXiv:1910.05653.

| paper, Algorithm 1 | here |
|---|---|
| model A, to which others are aligned | `reference`, the client with most examples |
| support: incoming weights, or activations on a batch | `ground = "weights" | "activations"` |
| C, Euclidean distance | the square root of `numerics.transport.assignment_costs` with weights 1 |
| T by exact EMD, or Sinkhorn | `plan = "exact" | "sinkhorn"`, `regularization` |
| T divided by its marginals; the same for the next layer's inputs | both always: `units.reorder`, `units.mix` |
| uniform mean of the aligned models | by `weights` |

Deviations: EMD between uniform measures of equal size is a permutation, which is computed exactly. Without the division
by marginals (the authors' option "correction") a copy in another order loses its function, and the result is the
pivot with shrunken weights; there is no such option. Activations need the server's examples (`samples` of them, of
the authors' 200). The mean is by numbers of examples unless `weights = "uniform"`, the paper's.

Models of other widths than the pivot's (extra `ot`; by weights) are carried to its widths: from files, `fedfi merge`
takes them, and `transported` does. What reads units is divided by the marginals of the model that is carried, where the
paper divides by the pivot's: units that are split are then not counted twice (see `units.resize`). For equal widths the
two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedfi.channels import Group, Wiring
from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.numerics.plans import exact_plan, sinkhorn_plan
from fedfi.numerics.tape import listen
from fedfi.numerics.transport import assign, assignment_costs
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.given import check_models, check_names, check_range, check_wiring
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.server import Server
from fedfi.oneshot.units import (
    Orders,
    check_regular,
    identity,
    mix,
    moved,
    producers,
    reorder,
    resize,
    retied,
    rows,
    untied,
)
from fedfi.oneshot.uploads import Merged, Upload, largest, shares

Features = Mapping[str, Tensor]
"""For each group its units' features `[U, D]`."""


def transported(
    model: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    names: Sequence[str],
    wiring: Wiring,
    *,
    features: tuple[Features, Features] | None = None,
    regularization: float | None = None,
    own: Wiring | None = None,
) -> tuple[Tree, Orders]:
    """A model whose units are carried to those of a reference, layer after layer.

    Args:
        model: The model.
        reference: The model whose units stay at their places.
        names: The trained parameters, by which units are compared.
        wiring: The channel groups of the reference.
        features: Activations of the model's units and of the reference's, instead of incoming weights.
        regularization: Of Sinkhorn's blurred plans; None: exact ones.
        own: The channel groups of the model, where its widths differ.

    Returns:
        The model, in the reference's widths, and where its units went (for plans that mix: from where most of each
        came).

    Raises:
        InputError: If the two have other tensors or groups, or an axis cannot get another length.
    """
    check_models([model] if own is not None else [reference, model])
    check_names(names, model)
    check_wiring(wiring, reference)
    if own is not None:
        check_wiring(own, model, "own")
    if regularization is not None:
        check_range("regularization", regularization, 0.0, open_below=True)
    ties = wiring if own is None else own
    carried, order, done = untied(ties, model), identity(wiring), set[str]()
    reference = untied(wiring, reference)
    groups = wiring.groups if own is None else _same_groups(own, wiring)
    for group, target in zip(groups, wiring.groups, strict=True):
        if features is None:
            here = rows(carried, producers(wiring if own is None else own, group, done, names))
            there = rows(reference, producers(wiring, target, done, names))
        else:
            here, there = features[0][group.name], features[1][group.name]
        costs = assignment_costs(there, here, torch.ones_like(here)).sqrt()
        if group.units == target.units and regularization is None:
            order[group.name] = assign(costs)
            reorder(carried, group, order[group.name])
        else:
            plan = exact_plan(costs) if regularization is None else sinkhorn_plan(costs, regularization)
            order[group.name] = plan.argmax(1)
            if group.units == target.units:
                mix(carried, group, plan)
            else:
                resize(carried, group, plan)
        done.add(group.name)
    return retied(ties, carried, model), order


def _same_groups(own: Wiring, wiring: Wiring) -> Sequence[Group]:
    """The groups of a network, if they are another's but for their numbers of units."""
    check_regular(own, "cannot get another width")
    check_regular(wiring, "cannot get another width")
    mine, theirs = (
        [(g.name, [(m.name, m.axis, m.role, m.positions.shape[1]) for m in g.members]) for g in w.groups]
        for w in (own, wiring)
    )
    if mine != theirs:
        differing = next((a[0] for a, b in zip(mine, theirs, strict=False) if a != b), "their number")
        raise InputError(f"networks differ in more than the widths of their channel groups: {differing}")
    return own.groups


def activations(server: Server, model: Mapping[str, Tensor], samples: int) -> Features:
    """What the units of each group put out on the server's first examples, before what follows the layer: `[U, D]`.

    Raises:
        InputError: If the server has no examples, or the layer that makes a group is no linear layer or convolution.
    """
    inputs = server.inputs(samples)
    if not inputs:
        raise server.without_examples("ground = 'activations' needs")
    module = server.loaded(model)
    seen: dict[str, list[Tensor]] = {}

    def hooks() -> Iterator[RemovableHandle]:
        for group in server.wiring.groups:
            layer = module.get_submodule(group.name.rpartition(".")[0])
            if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
                raise InputError(
                    f"activations of {group.name!r}: a {type(layer).__name__} has none; use ground = 'weights'"
                )
            axis = -1 if isinstance(layer, nn.Linear) else 1
            yield layer.register_forward_hook(_noting(seen.setdefault(group.name, []), group, axis))

    listen(module, hooks(), inputs)
    return {name: torch.cat(parts, 1) for name, parts in seen.items()}


def _noting(found: list[Tensor], group: Group, axis: int):  # type: ignore[no-untyped-def]
    positions = next(m.positions for m in group.members if m.name == group.name and m.role == "out")

    def note(_: nn.Module, __: object, output: Tensor) -> None:
        channels = output.movedim(axis, 0)[positions.flatten()]
        found.append(channels.reshape(len(positions), -1))

    return note


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class OTFusion(OneShot):
    """Every model carried to the largest client's by optimal transport, then the mean."""

    takes_widths: ClassVar[bool] = True

    ground: Annotated[
        Literal["weights", "activations"],
        Field(description="what neurons are compared by: incoming weights, or activations on the server's examples"),
    ] = "weights"
    samples: Annotated[int, Field(ge=1, description="server's examples for activations")] = 200
    plan: Annotated[Literal["exact", "sinkhorn"], Field(description="exact plans, or blurred ones (extra ot)")] = (
        "exact"
    )
    regularization: Annotated[float, Field(gt=0, description="blur of Sinkhorn's plans, of the largest cost")] = 0.01

    needs_channels: ClassVar[bool] = True
    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("ground", "examples", values=("activations",)),
        Acts("samples", "options", given={"ground": ("activations",)}),
        Acts("regularization", "options", given={"plan": ("sinkhorn",)}),
    )

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Carries all to the pivot."""
        server, pivot = context.server, largest(uploads)
        if uploads[pivot].wiring is not None or (self.ground == "activations" and any(u.wiring for u in uploads)):
            raise InputError(
                "models of several widths are carried to the client's with most examples, whose network must be the"
                " server's, and by ground = 'weights'"
            )
        found = [activations(server, u.model, self.samples) for u in uploads] if self.ground == "activations" else None
        carried, orders = [], []
        for i, upload in enumerate(uploads):
            model, order = transported(
                upload.model,
                uploads[pivot].model,
                upload.trained,
                server.wiring,
                features=None if found is None else (found[i], found[pivot]),
                regularization=self.regularization if self.plan == "sinkhorn" else None,
                own=upload.wiring,
            )
            carried.append(uploads[pivot].model if i == pivot else model)
            orders.append(identity(server.wiring) if i == pivot else order)
        return Merged(mean(carried, shares(uploads, self.weights)), {"permuted": moved(orders)[""]}, orders=orders)
