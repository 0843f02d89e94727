"""Guidance: a global table softly enters a user's own, item by item through a small gate.

    q*_i = beta q_i + (1 - beta) 2 g_i Q_i,    g_i = sigmoid(a . [q_i, Q_i, q_i - Q_i] + b),

so a gate of 1/2 leaves the anchor Q_i as it is, a smaller one weakens it, a larger one amplifies it. The gate starts
at a = 0, b = 0, that is at 1/2, and is trained with table and head frozen, to lessen the loss after guidance; its
gradient is clipped by its own norm, as that of table and head is in training. Gates are ``[3 d + 1]`` a user, b last.
Shapes: ``n`` users, ``m`` items, ``d`` numbers an item.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Tree
from fedfi.recsys import many, single
from fedfi.recsys.backbones import Backbone
from fedfi.recsys.recipe import Recipe
from fedfi.recsys.single import clip_factor

PURPOSE = "gate"


def gate_values(gate: Tensor, own: Tensor, anchor: Tensor) -> Tensor:
    """Gates ``[..., l]`` in (0, 1) of rows ``[..., l, d]`` and their anchors, by gates ``[..., 3 d + 1]``."""
    of_own, of_anchor, of_difference = gate[..., :-1].chunk(3, -1)
    # a1 . q + a2 . Q + a3 . (q - Q), without making the long vector
    score = (own * (of_own + of_difference)[..., None, :]).sum(-1)
    score = score + (anchor * (of_anchor - of_difference)[..., None, :]).sum(-1)
    return (score + gate[..., -1:]).sigmoid()


def guided(own: Tensor, anchor: Tensor, beta: float, gate: Tensor | None) -> Tensor:
    """Rows ``[..., l, d]`` after guidance towards their anchors; without a gate it is 1/2 everywhere."""
    if gate is None:
        return beta * own + (1.0 - beta) * anchor
    return beta * own + (2.0 - 2.0 * beta) * gate_values(gate, own, anchor)[..., None] * anchor


def train_gate(
    client: Client,
    backbone: Backbone,
    table: Tensor,
    anchor: Tensor,
    head: Tree,
    gate: Tensor,
    beta: float,
    rate: float,
    recipe: Recipe,
) -> Tensor:
    """The gate ``[3 d + 1]`` after some passes of plain steps on the loss after guidance, all else frozen.

    Args:
        client: Whose ratings and draws.
        backbone: The scoring function.
        table: The client's own rows ``[m, d]``.
        anchor: The global rows ``[m, d]``.
        head: The client's head.
        gate: The gate before.
        beta: Weight of the own rows.
        rate: Step size.
        recipe: Batch size, largest norm of a gradient, and as epochs the number of passes.
    """
    frozen = {n: t.detach()[None] for n, t in head.items()}
    for items, labels in single.batches(client, recipe, PURPOSE):
        gate = gate.detach().requires_grad_()
        rows = guided(table[items].detach(), anchor[items].detach(), beta, gate)
        loss = recipe.objective.losses(backbone.logits(frozen, rows[None])[0], labels).mean()
        (gradient,) = torch.autograd.grad(loss, gate)
        gate = gate.detach() - rate * clip_factor(gradient.square().sum().sqrt(), recipe.clip) * gradient
    return gate


def train_gates(
    cohort: Cohort,
    backbone: Backbone,
    tables: Tensor,
    anchor: Tensor,
    head: Tree,
    gates: Tensor,
    beta: float,
    rate: float,
    recipe: Recipe,
) -> Tensor:
    """The gates ``[n, 3 d + 1]`` of many users; arguments as `train_gate`, `tables` ``[clients, m, d]``."""
    number, items = len(cohort), tables.shape[1]
    flat, base, width = tables.view(-1, tables.shape[2]), cohort.rows * items, many.width(cohort, recipe)
    frozen = {n: t.detach() for n, t in head.items()}
    for batch in many.batches(cohort, recipe, PURPOSE):
        place = batch.client * width + batch.slot
        item, label = torch.zeros(number * width, dtype=torch.int64), torch.zeros(number * width)
        item[place], label[place] = batch.item, batch.label
        item, label = item.view(number, width), label.view(number, width)
        gates = gates.detach().requires_grad_()
        rows = guided(flat[base[:, None] + item], anchor[item], beta, gates)
        _, loss = many.padded_loss(backbone.logits(frozen, rows), label, batch, recipe)
        (gradient,) = torch.autograd.grad(loss, gates)
        factor = clip_factor(gradient.square().sum(1).sqrt(), recipe.clip)
        gates = gates.detach() - rate * factor[:, None] * gradient
    return gates


def passes(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe of a gate's training."""
    return dataclasses.replace(recipe, epochs=epochs)


def part_of(cohort: Cohort, who: Tensor) -> Cohort:
    """Some clients of a cohort."""
    chosen = who.tolist()
    return dataclasses.replace(
        cohort,
        ids=[cohort.ids[i] for i in chosen],
        packets=[cohort.packets[i] for i in chosen],
        rows=cohort.rows[who],
    )
