"""Training many clients' recommenders at once.

All tables are one tensor, row ``base + item`` of which is a client's item. Only rows that a batch touches are read and
written. For a linear head the gradient is closed: with logit s = q w + b and g the gradient of the batch's mean loss in
the logits, for binary cross-entropy (sigmoid(s) - y) / batch,

    ds: row of item i  <-  G_i w,  w  <-  sum_e g_e q_e,  b  <-  sum_e g_e,

where G_i sums g over the examples of item i. A row's new value is computed for each of its examples alike, so writing
it more than once does no harm, and nothing needs to be made unique. For other heads autograd runs on the touched rows
of all clients together. Step k of all clients that have one is one operation, on ``e`` examples of ``n`` clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedfi.data.negatives import stream
from fedfi.errors import InputError
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Tree
from fedfi.numerics.steady import full, matmul
from fedfi.recsys.backbones import Backbone
from fedfi.recsys.recipe import Recipe, ratings_of
from fedfi.recsys.single import clip_factor


@dataclass(frozen=True)
class Batch:
    """One step of all clients that have one.

    Attributes:
        client: Whose example, ``[e]`` rising in ``0 .. n - 1``.
        item: ``[e]``.
        label: ``[e]`` float32.
        slot: Place within the client's batch ``[e]``.
        sizes: Examples of each client ``[n]``, 0 for those without this step.
    """

    client: Tensor
    item: Tensor
    label: Tensor
    slot: Tensor
    sizes: Tensor


def batches(cohort: Cohort, recipe: Recipe, purpose: str) -> Iterator[Batch]:
    """The steps of a round, as `fedfi.recsys.single.batches` makes them for one client."""
    of, number = ratings_of(cohort.task).interactions, len(cohort)
    for epoch in range(recipe.epochs):
        drawn = stream(of, cohort.rows.numpy(), cohort.keys(f"{purpose} {epoch}"))
        step = drawn.place // recipe.batch
        order = np.argsort(step, kind="stable") if len(step) and step.max() else slice(None)
        ends = np.cumsum(np.bincount(step))
        parts = [torch.from_numpy(a[order]) for a in (drawn.client, drawn.item, drawn.label, drawn.place)]
        for start, stop in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            client, item, label, place = (p[start:stop] for p in parts)
            sizes = torch.bincount(client, minlength=number)
            yield Batch(client, item, label, place % recipe.batch, sizes)


def train_many(
    cohort: Cohort,
    backbone: Backbone,
    table: Tensor,
    base: Tensor,
    head: Tree,
    recipe: Recipe,
    anchors: Sequence[Tensor] | None = None,
) -> Tensor:
    """One round of local training, in place.

    Args:
        cohort: Whose ratings and random draws.
        backbone: The scoring function.
        table: All rows of all clients ``[rows, d]``, contiguous.
        base: The first row of each client ``[n]``.
        head: Heads ``[n, ...]``.
        recipe: How.
        anchors: Where each client's table is pulled to ``[items, d]``, if the recipe has a pull.

    Returns:
        Each client's mean loss over the terms of its objective ``[n]``.
    """
    total, count = torch.zeros(len(cohort)), torch.zeros(len(cohort))
    items = len(ratings_of(cohort.task).items)
    scratch = torch.zeros(len(cohort) * items) if backbone.weight else None
    slots = width(cohort, recipe)
    for batch in batches(cohort, recipe, "train"):
        if scratch is not None:
            weight, bias = head[backbone.weight], head.get(backbone.bias)
            losses = _linear_step(table, base, weight, bias, batch, recipe, scratch, items)
        else:
            losses = _autograd_step(table, base, head, backbone, batch, recipe, slots)
        if anchors is not None:
            for i in batch.sizes.nonzero()[:, 0].tolist():
                table[int(base[i]) : int(base[i]) + items].lerp_(anchors[i], recipe.pull)
        total += losses
        count += batch.sizes // recipe.objective.group
    return total / count


def _linear_step(
    table: Tensor,
    base: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    batch: Batch,
    recipe: Recipe,
    scratch: Tensor,
    items: int,
) -> Tensor:
    """A step of linear heads; the sum of each client's losses ``[n]``. `scratch` is zero before and after."""
    client = batch.client
    place = client * items + batch.item
    row = base[client] + batch.item
    rows = table.index_select(0, row)
    goal = recipe.objective
    each = _terms(batch, recipe).to(rows.dtype)[client]
    own = weight.index_select(0, client)

    def residuals() -> tuple[Tensor, Tensor]:
        logits = (rows * own).sum(1)
        if bias is not None:
            logits += bias[client, 0]
        terms, g = goal.closed(logits, batch.label)
        return terms, g / each

    terms, g = residuals()
    losses = _per_client(terms, batch, goal.group)
    of_weight = torch.zeros_like(weight).index_add_(0, client, g[:, None] * rows)
    of_bias = _per_client(g, batch)
    head_square = of_weight.square().sum(1) + (of_bias.square() if bias is not None else 0.0)

    def moved_head(factor: Tensor) -> None:
        weight.sub_(of_weight * (recipe.rate * factor)[:, None])
        if bias is not None:
            bias.sub_((of_bias * recipe.rate * factor)[:, None])

    if recipe.alternate:
        moved_head(clip_factor(head_square.sqrt(), recipe.clip))
        own = weight.index_select(0, client)
        g = residuals()[1]
    scratch.scatter_add_(0, place, g)
    of_item = scratch[place]
    scratch[place] = 0.0
    across = weight if recipe.subspace is None else _within(weight, recipe.subspace)
    if recipe.subspace is not None:
        own = across.index_select(0, client)
    # sum_i G_i^2 = sum_e g_e G_i(e)
    square = _per_client(g * of_item, batch) * across.square().sum(1)
    if not recipe.alternate:
        square = square + head_square
    factor = clip_factor(square.clamp(min=0).sqrt(), recipe.clip)
    pull = of_item * (recipe.item_rate * factor)[client]
    table.index_copy_(0, row, torch.addcmul(rows, pull[:, None], own, value=-1))
    if not recipe.alternate:
        moved_head(factor)
    return losses


def _within(weight: Tensor, subspace: Tensor) -> Tensor:
    """Each client's vector ``[n, d]`` projected on a subspace ``[d, r]``."""
    both = (subspace @ subspace.T).expand(len(weight), -1, -1)
    return matmul(weight[:, None], both)[:, 0]


def _per_client(values: Tensor, batch: Batch, group: int = 1) -> Tensor:
    return torch.zeros(len(batch.sizes)).index_add_(0, batch.client[::group], values)


def _terms(batch: Batch, recipe: Recipe) -> Tensor:
    """Terms of the objective in each client's batch ``[n]``, 1 for those without this step."""
    return (batch.sizes // recipe.objective.group).clamp(min=1)


def _autograd_step(
    table: Tensor, base: Tensor, head: Tree, backbone: Backbone, batch: Batch, recipe: Recipe, width: int
) -> Tensor:
    """A step of any heads; the sum of each client's losses ``[n]``."""
    if recipe.subspace is not None:
        raise InputError("updates in a subspace are for linear scoring functions (backbone mf or pfedrec)")
    number = len(batch.sizes)
    row, inverse = torch.unique(base[batch.client] + batch.item, return_inverse=True)
    owner = torch.empty_like(row).scatter_(0, inverse, batch.client)
    place = batch.client * width + batch.slot
    spread, label = torch.zeros(number * width, dtype=torch.int64), torch.zeros(number * width)
    spread[place], label[place] = inverse, batch.label
    spread, label = spread.view(number, width), label.view(number, width)

    rows = table.index_select(0, row).requires_grad_()
    heads = {n: t.clone().requires_grad_() for n, t in head.items()}
    active = (batch.sizes > 0).to(table.dtype)

    def gradients(of: list[Tensor], heads: Tree) -> tuple[Tensor, list[Tensor]]:
        logits = backbone.logits(heads, functional.embedding(spread, rows))
        summed, loss = padded_loss(logits, label, batch, recipe)
        return summed.detach(), list(torch.autograd.grad(loss, of))

    def square_of_heads(found: list[Tensor]) -> Tensor:
        return torch.stack([g.flatten(1).square().sum(1) for g in found]).sum(0)

    def square_of_rows(found: Tensor) -> Tensor:
        return torch.zeros(number).index_add_(0, owner, found.square().sum(1))

    def move_heads(found: list[Tensor], factor: Tensor) -> None:
        for tensor, gradient in zip(head.values(), found, strict=True):
            tensor.sub_(gradient * (recipe.rate * factor * active).view(-1, *[1] * (tensor.dim() - 1)))

    if recipe.alternate:
        losses, found = gradients(list(heads.values()), heads)
        move_heads(found, clip_factor(square_of_heads(found).sqrt(), recipe.clip))
        _, (of_rows,) = gradients([rows], head)
        factor = clip_factor(square_of_rows(of_rows).sqrt(), recipe.clip)
    else:
        losses, (of_rows, *found) = gradients([rows, *heads.values()], heads)
        factor = clip_factor((square_of_heads(found) + square_of_rows(of_rows)).sqrt(), recipe.clip)
        move_heads(found, factor)
    table.index_copy_(0, row, rows.detach() - of_rows * (recipe.item_rate * factor)[owner][:, None])
    return losses


def padded_loss(logits: Tensor, label: Tensor, batch: Batch, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The loss of a padded batch, logits and labels ``[n, width]``.

    Returns:
        The sum over each client's terms ``[n]``, and the sum over clients of the means of their terms.
    """
    terms = recipe.objective.losses(logits, label)
    there = torch.arange(terms.shape[1])[None] < (batch.sizes // recipe.objective.group)[:, None]
    summed = (terms * there).sum(1)
    return summed, (summed / _terms(batch, recipe)).sum()


def width(cohort: Cohort, recipe: Recipe) -> int:
    """Slots of a padded batch; by the data alone, so that a client's arithmetic does not depend on its cohort."""
    of, group = ratings_of(cohort.task).interactions, recipe.objective.group
    return full(min(recipe.batch, int(of.counts.max()) * (of.per_positive + 1)) // group) * group
