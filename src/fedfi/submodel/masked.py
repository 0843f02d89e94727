"""Submodels by an unstructured mask: how they travel, how they are trained, and what of them can be summed unseen.

The mask covers the vector's selectable entries (`VectorLayout.pool`); the others, such as parameters of normalisation
layers, are always kept and trained. Only kept values travel: the forward pass runs at x * M, so a client has no use
for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedfi.federation.client import Client
from fedfi.federation.packet import Layout, Packet, Scalar, Tree
from fedfi.federation.training import Gradient, Trained, mean_loss_gradient, train_locally
from fedfi.federation.workbench import Workbench
from fedfi.numerics.selection import pack_bits, unpack_bits
from fedfi.submodel.holders import HolderMean
from fedfi.submodel.model import Model, marked, unmarked


def send(model: Model, mask: Tensor, scalars: Mapping[str, Scalar]) -> Packet:
    """The packet of a submodel: a bit a selectable entry, the kept values, and what every submodel has."""
    tensors = {"kept": model.vector[model.whole(mask)]} | marked(model.constants)
    return Packet(tensors, scalars, {"mask": pack_bits(mask)})


def receive(packet: Packet, bench: Workbench) -> Tensor:
    """Loads a submodel into a workbench, zero off the mask, and returns its mask `[pool]`."""
    pool, device = bench.layout.pool, bench.vector.device
    mask = unpack_bits(packet.blobs["mask"], pool).to(device)
    held = int(mask.sum())
    kept = packet.tensors["kept"].to(device)
    bench.load(unmarked(packet.tensors))
    with torch.no_grad():
        bench.vector.zero_()
        bench.vector[:pool].masked_scatter_(mask, kept[:held])
        bench.vector[pool:] = kept[held:]
    return mask


def sent_mask(packet: Packet, model: Model) -> Tensor:
    """The mask `[size]` of all entries that a packet of `send` holds."""
    return model.whole(unpack_bits(packet.blobs["mask"], model.layout.pool))


def returned(model: Model, packet: Packet) -> Layout:
    """The layout of what a client sends back of a submodel: the update of what it holds, and the buffers."""
    update = {"update": packet.tensors["kept"]}
    return Layout.like(update | marked({n: model.constants[n] for n in model.buffers}))


def summand_layout(model: Model) -> Layout:
    """The layout of what all clients can add up, whatever they hold: `summand`."""
    return Layout.like(
        {"update": model.vector, "held": model.pool} | marked({n: model.constants[n] for n in model.buffers})
    )


def summand(model: Model, sent: Packet, reply: Packet) -> Tree:
    """A reply as a vector of the whole model: the update, zero off the mask, the mask as numbers, and the buffers.

    The quotient of the sums of update and mask is the mean over those that hold an entry.
    """
    mask = unpack_bits(sent.blobs["mask"], model.layout.pool)
    update = torch.zeros_like(model.vector).masked_scatter_(model.whole(mask), reply.tensors["update"])
    return {"update": update, "held": mask.to(update.dtype)} | marked(unmarked(reply.tensors))


def add_mean(mean: HolderMean, model: Model, summands: Mapping[str, Tensor]) -> None:
    """Adds the mean of many clients' summands."""
    mean.add_dense(summands["update"], model.whole(summands["held"]), unmarked(summands))


def train_masked(
    client: Client,
    mask: Tensor,
    gradient: Gradient | None = None,
    factor: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Trained, Tree]:
    """Trains the loaded submodel; entries off the mask stay exactly zero under every optimizer.

    Args:
        client: On whose workbench `receive` put the submodel.
        mask: `[pool]`.
        gradient: As for `train_locally`.
        factor: Weights `[pool]` -> what gradients on the mask are multiplied by, such as FIARSE's factor.

    Returns:
        The training's outcome, and what travels back: the update of the kept entries (start minus end) as
        ``"update"``, and the buffers.
    """
    bench = client.workbench
    pool = bench.layout.pool
    start = bench.vector.detach().clone()
    selectable, kept = bench.vector.detach()[:pool], mask.to(start.dtype)
    grad = bench.vector.grad
    assert grad is not None  # made with the workbench
    slopes = grad[:pool]

    def adjust() -> None:
        slopes.mul_(kept)
        if factor:
            slopes.mul_(factor(selectable))

    def settle() -> None:
        selectable.mul_(kept)

    trained = train_locally(client, gradient=gradient, adjust=adjust, settle=settle)
    return trained, update_of(bench, start, mask)


def train_thresholded(client: Client, mask: Tensor, threshold: Tensor, *, factor: bool = True) -> tuple[Trained, Tree]:
    """FIARSE's training: in every forward pass the mask is the kept entries that are still above the threshold.

    An entry that falls below it counts as zero, gets no gradient, and keeps its value; every optimizer leaves it
    where it is, as the update and not the gradient is masked. So it cannot come back within the round.

    Args:
        client: On whose workbench `receive` put the submodel.
        mask: `[pool]`.
        threshold: `[pool]`, the threshold of each entry's ranking.
        factor: Whether gradients are multiplied by `threshold_factor`.

    Returns:
        As `train_masked`.
    """
    bench = client.workbench
    pool = bench.layout.pool
    start = bench.vector.detach().clone()
    selectable, plain = bench.vector.detach()[:pool], mean_loss_gradient(client)
    grad = bench.vector.grad
    assert grad is not None  # made with the workbench
    slopes, stored, active = grad[:pool], selectable.clone(), mask.clone()

    def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
        torch.logical_and(mask, stored.abs() >= threshold, out=active)
        selectable.copy_(stored * active)
        loss = plain(inputs, targets)
        slopes.mul_(active)
        if factor:
            slopes.mul_(threshold_factor(stored, threshold))
        selectable.copy_(stored)
        return loss

    def settle() -> None:
        selectable.copy_(torch.where(active, selectable, stored))
        stored.copy_(selectable)

    trained = train_locally(client, gradient=gradient, settle=settle)
    return trained, update_of(bench, start, mask)


def update_of(bench: Workbench, start: Tensor, mask: Tensor) -> Tree:
    """What a client sends back: start minus end of what it holds, and the buffers."""
    change, pool = start - bench.vector.detach(), bench.layout.pool
    update = torch.cat([change[:pool][mask], change[pool:]])
    return {"update": update} | marked({n: t.clone() for n, t in bench.buffers().items()})


def threshold_factor(weights: Tensor, threshold: Tensor | float) -> Tensor:
    """FIARSE's factor 1 + 2 t |w| / (|w| + t)^2 of the gradient: 1.5 at |w| = t, towards 1 far from it.

    It is 1 where t is 0.
    """
    size = weights.abs()
    total = size + threshold
    return 1 + 2 * threshold * size / total.where(total > 0, 1) ** 2
