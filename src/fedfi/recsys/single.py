"""Training one client's recommender by plain autograd: what the vectorised path must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedfi.data.negatives import stream
from fedfi.federation.client import Client
from fedfi.federation.cohort import client_key
from fedfi.federation.packet import Tree
from fedfi.recsys.backbones import Backbone
from fedfi.recsys.recipe import Recipe, own_ratings


def batches(client: Client, recipe: Recipe, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Items and labels of each step of a round, ``[batch]`` each."""
    of = own_ratings(client).interactions
    for epoch in range(recipe.epochs):
        key = client_key(client.seed, client.round, client.id, f"{purpose} {epoch}")
        drawn = stream(of, np.zeros(1, dtype=np.int64), np.array([key], dtype=np.uint64))
        items, labels = torch.from_numpy(drawn.item), torch.from_numpy(drawn.label)
        yield from zip(items.split(recipe.batch), labels.split(recipe.batch), strict=True)


def train_one(
    client: Client, backbone: Backbone, table: Tensor, head: Tree, recipe: Recipe, anchor: Tensor | None = None
) -> tuple[Tensor, Tree, float]:
    """One round of local training.

    Args:
        client: Whose ratings and random draws.
        backbone: The scoring function.
        table: Item rows ``[items, d]``.
        head: The client's head, without the axis of users.
        recipe: How.
        anchor: Where the table is pulled to ``[items, d]``, if the recipe has a pull.

    Returns:
        The trained table and head, and the mean loss over all terms of the objective.
    """
    table = table.clone().requires_grad_()
    head = {n: t.clone().requires_grad_() for n, t in head.items()}
    total, count = 0.0, 0
    for items, labels in batches(client, recipe, "train"):

        def loss(items: Tensor = items, labels: Tensor = labels, table: Tensor = table) -> Tensor:
            logits = backbone.logits({n: t[None] for n, t in head.items()}, table[items][None])[0]
            return recipe.objective.losses(logits, labels).mean()

        value = loss()
        terms = len(items) // recipe.objective.group
        total, count = total + value.item() * terms, count + terms
        if recipe.alternate:
            _step(value, list(head.values()), [recipe.rate] * len(head), recipe)
            _step(loss(), [table], [recipe.item_rate], recipe)
        else:
            rates = [recipe.item_rate] + [recipe.rate] * len(head)
            _step(value, [table, *head.values()], rates, recipe)
        if anchor is not None:
            table = torch.lerp(table.detach(), anchor, recipe.pull).requires_grad_()
    return table.detach(), {n: t.detach() for n, t in head.items()}, total / count


def _step(loss: Tensor, tensors: Sequence[Tensor], rates: Sequence[float], recipe: Recipe) -> None:
    gradients = [*torch.autograd.grad(loss, tensors)]
    if recipe.subspace is not None and gradients[0].dim() == 2:  # the table's comes first
        gradients[0] = gradients[0] @ recipe.subspace @ recipe.subspace.T
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    factor = clip_factor(norm, recipe.clip)
    with torch.no_grad():
        for tensor, gradient, rate in zip(tensors, gradients, rates, strict=True):
            tensor -= rate * factor * gradient


def clip_factor(norm: Tensor, clip: float | None) -> Tensor:
    """What a gradient of this norm is multiplied with, as `torch.nn.utils.clip_grad_norm_` has it."""
    return torch.ones_like(norm) if clip is None else (clip / (norm + 1e-6)).clamp(max=1.0)
