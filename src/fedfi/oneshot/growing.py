"""Networks with more units than their clients': matching units group by group, and modules of any widths.

Every tensor belongs to the units of one group: going forward to those that it makes (weights by rows, biases), going
backward to those that read it last (weights by columns). Units are matched by what belongs to them, with the other axes
of each client's tensors laid out by the groups that are done; where a client lacks a unit there, it has zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedfi.arguments import expect
from fedfi.channels import Group, Member, Wiring
from fedfi.errors import InputError
from fedfi.federation.packet import Tree
from fedfi.numerics.nonparametric import match_units
from fedfi.oneshot.given import RNG, check_models, check_wiring
from fedfi.oneshot.units import Orders, check_regular, rows
from fedfi.oneshot.uploads import Upload, shares

Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class Process:
    """The matching's parameters: mass, and standard deviations around and of global units."""

    gamma: float = 7.0
    sigma: float = 1.0
    sigma0: float = 1.0
    sweeps: int = 5


@dataclass(frozen=True, eq=False)
class Grown:
    """A network of J units a group.

    Attributes:
        model: Its parameters and buffers.
        counts: For each group the number of clients that hold each unit, `[J]`.
        assignments: For each client and group the place of each of its units, `[U]`.
    """

    model: Tree
    counts: dict[str, Tensor]
    assignments: list[Orders]


def grow(
    wiring: Wiring,
    uploads: Sequence[Upload],
    direction: Direction,
    process: Process,
    rng: torch.Generator,
) -> Grown:
    """Matches the units of K models group by group into one wider network.

    Args:
        wiring: The channel groups; every tensor of a group holds nothing but its units, in order.
        uploads: K models; with the statistic `classes` of all, the last layer's rows are weighted by who has the class.
        direction: Order of the groups: FedMA's, from the input, or PFNM's, from the output.
        process: The parameters.
        rng: Draws orders of clients.

    Raises:
        InputError: If models and channel groups do not fit together; if a layer cannot be widened, naming it; or if
            some uploads lack the statistic that others hold.
    """
    check_models([u.model for u in uploads])
    check_wiring(wiring, uploads[0].model)
    expect("rng", rng, torch.Generator, RNG)
    check_regular(wiring, "cannot be made wider")
    models = [dict(u.model) for u in uploads]
    classes = _class_shares(wiring, uploads)
    sure = [{n: torch.ones_like(m[n]) * f.get(n, 1.0) for n in m} for m, f in zip(models, classes, strict=True)]
    present = [{n: torch.ones_like(t, dtype=torch.float64) for n, t in m.items()} for m in models]
    trained, owned, merged = set(uploads[0].trained), set[str](), dict[str, Tensor]()
    counts: dict[str, Tensor] = {}
    assignments: list[Orders] = [{} for _ in models]
    groups = wiring.groups if direction == "forward" else tuple(reversed(wiring.groups))
    for group in groups:
        members = [m for m in _belonging(group, wiring, direction) if m.name in trained and m.name not in owned]
        if not members:
            raise InputError(f"nothing belongs to the units of {group.name!r} alone, so they cannot be matched")
        found = match_units(
            [rows(m, members) for m in models],
            [rows(s, members).double().mean(0).clamp(min=1e-6) for s in sure],
            rng=rng,
            gamma=process.gamma,
            sigma=process.sigma,
            sigma0=process.sigma0,
            sweeps=process.sweeps,
        )
        counts[group.name] = found.counts
        merged |= _placed(found.centres, members, models[0], len(found.counts))
        owned |= {m.name for m in members}
        for assigned, places in zip(assignments, found.assignments, strict=True):
            assigned[group.name] = places
        for model, certain, here, places in zip(models, sure, present, found.assignments, strict=True):
            _spread(model, group, places, len(found.counts), 0.0)
            _spread(certain, group, places, len(found.counts), 1.0)
            _spread(here, group, places, len(found.counts), 0.0)
    merged |= _rest(uploads, models, classes, present, owned)
    return Grown({n: merged[n].to(uploads[0].model[n].dtype) for n in uploads[0].model}, counts, assignments)


def cut(grown: Grown, wiring: Wiring) -> Tree:
    """The network of the original widths: of each group the units that most clients hold."""
    model = dict(grown.model)
    for group in wiring.groups:
        order = _kept(grown, group)
        for member in group.members:
            width = member.positions.shape[1]
            index = (order[:, None] * width + torch.arange(width)).flatten()
            model[member.name] = model[member.name].index_select(member.axis, index)
    return model


def homes(grown: Grown, wiring: Wiring) -> list[Orders]:
    """For each client and group which of its units is at each place of the `cut` network, -1 where it has none."""
    found: list[Orders] = []
    for assigned in grown.assignments:
        orders = {}
        for group in wiring.groups:
            places = assigned[group.name]
            units = torch.full((len(grown.counts[group.name]),), -1)
            units[places] = torch.arange(len(places))
            orders[group.name] = units[_kept(grown, group)]
        found.append(orders)
    return found


def _kept(grown: Grown, group: Group) -> Tensor:
    return grown.counts[group.name].argsort(descending=True, stable=True)[: group.units].sort().values


def widened(module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """A copy of a module whose parameters and buffers have these shapes; values are zeros where shapes differ."""
    wide = copy.deepcopy(module)
    layers = dict(wide.named_modules())
    for name, shape in shapes.items():
        path, _, own = name.rpartition(".")
        layer = layers[path]
        old = getattr(layer, own)
        if tuple(old.shape) == tuple(shape):
            continue
        fresh = torch.zeros(shape, dtype=old.dtype)
        if isinstance(old, nn.Parameter):
            setattr(layer, own, nn.Parameter(fresh, requires_grad=old.requires_grad))
        else:
            layer.register_buffer(own, fresh)
        if own != "weight":
            continue
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = shape[0], shape[1]
        elif isinstance(layer, nn.Conv2d):
            layer.out_channels, layer.in_channels = shape[0], shape[1]
        elif isinstance(layer, _BatchNorm):
            layer.num_features = shape[0]
        elif isinstance(layer, nn.LayerNorm) and len(shape) == 1:
            layer.normalized_shape = shape
        else:
            raise InputError(f"layer {path!r}, a {type(layer).__name__}, cannot be made wider")
    return wide


def _belonging(group: Group, wiring: Wiring, direction: Direction) -> list[Member]:
    """What units are matched by: rows and biases; or columns and biases, and rows where the input is the network's."""
    if direction == "forward":
        return [m for m in group.members if m.role == "out"]
    read = {m.name for g in wiring.groups for m in g.members if m.role == "in"}
    return [
        m
        for m in group.members
        if m.role == "in" or (m.role == "out" and (len(wiring.shapes[m.name]) == 1 or m.name not in read))
    ]


def _class_shares(wiring: Wiring, uploads: Sequence[Upload]) -> list[Tree]:
    """For each client its share of every class's examples, in the shape of rows of the last layer's tensors."""
    if not any("classes" in u.statistics for u in uploads):
        return [{} for _ in uploads]
    counts = torch.stack([u.measured("classes")["counts"].double() for u in uploads])
    fractions = (counts + 1e-3) / (counts + 1e-3).sum(0)
    found: list[Tree] = []
    for fraction in fractions:
        tree: Tree = {}
        for m in wiring.outputs:
            shape = [1] * len(wiring.shapes[m.name])
            shape[m.axis] = -1
            tree[m.name] = fraction[m.positions[:, 0].argsort()].view(shape)
        found.append(tree)
    return found


def _spread(tree: Tree, group: Group, places: Tensor, count: int, empty: float) -> None:
    """Lays a client's units out at their global places along every axis of the group; elsewhere is `empty`."""
    for member in group.members:
        if member.name not in tree:
            continue
        tensor = tree[member.name].movedim(member.axis, 0)
        width = member.positions.shape[1]
        wide = torch.full((count, width, *tensor.shape[1:]), empty, dtype=tensor.dtype)
        wide[places] = tensor.reshape(len(places), width, *tensor.shape[1:])
        tree[member.name] = wide.reshape(count * width, *tensor.shape[1:]).movedim(0, member.axis)


def _placed(centres: Tensor, members: Sequence[Member], like: Tree, count: int) -> Tree:
    """Rows of global units as tensors; other axes are as in `like`."""
    found, start = {}, 0
    for m in members:
        rest = like[m.name].movedim(m.axis, 0).shape[1:]
        width = m.positions.shape[1] * rest.numel()
        part = centres[:, start : start + width].reshape(count * m.positions.shape[1], *rest)
        found[m.name] = part.movedim(0, m.axis).contiguous()
        start += width
    return found


def _rest(
    uploads: Sequence[Upload], models: list[Tree], classes: list[Tree], present: list[Tree], owned: set[str]
) -> Tree:
    """What belongs to no units (the last layer, norms, buffers): means over the clients that hold each entry."""
    party = shares(uploads, "examples")
    found: Tree = {}
    for name, first in models[0].items():
        if name in owned:
            continue
        if not first.is_floating_point():
            found[name] = torch.stack([m[name] for m in models]).amax(0)
            continue
        weights = [c.get(name, p) * h[name] for c, p, h in zip(classes, party, present, strict=True)]
        total = torch.stack([w * m[name].double() for w, m in zip(weights, models, strict=True)]).sum(0)
        mass = torch.stack(weights).sum(0)
        found[name] = torch.where(mass > 0, total / mass.clamp(min=1e-300), 0.0)
    return found
