"""Local training: the one loop that every method runs on a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedfi.arguments import named
from fedfi.data.ratings import ClientRatings
from fedfi.errors import InputError, RunError
from fedfi.federation.client import Client
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.shared import Trained, keep, place_of, recall
from fedfi.federation.task import Training
from fedfi.federation.trial import check_losses

Gradient = Callable[[Tensor, Tensor], Tensor]
"""(inputs, targets) -> mean loss; leaves the gradient in the workbench's `vector.grad`, which it gets zeroed."""


def batch_positions(size: int, training: Training, rng: torch.Generator) -> Iterator[Tensor]:
    """Positions of each step's examples: epochs in fresh random order, the last batch of an epoch smaller.

    A last batch of a single example is joined to the one before it, since batch statistics of one are undefined.

    Args:
        size: Number of examples.
        training: Gives the batch size, and the number of steps or epochs.
        rng: Source of the order.
    """
    for _ in range(_epochs(size, training)):
        yield from batches_of(torch.randperm(size, generator=rng), training.batch_size)


def batches_of(order: Tensor, size: int) -> list[Tensor]:
    """The batches of an epoch whose examples come in this order; a last one of one example joins the one before it."""
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1 < size:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _epochs(size: int, training: Training) -> int:
    if training.steps is None:
        return training.epochs or 1
    return training.steps  # an upper bound: an epoch has at least one step


def step_count(size: int, training: Training) -> int:
    """Number of steps that `size` examples are trained for."""
    if training.steps is not None:
        return training.steps
    full, rest = divmod(size, training.batch_size)
    return (full + (rest > 1 or (rest == 1 and full == 0))) * (training.epochs or 1)


def make_step(vector: torch.nn.Parameter, training: Training) -> Callable[[float], None]:
    """The local optimizer over the vector of parameters: a step of the given rate along `vector.grad`.

    Plain SGD is written out, bit for bit what `torch.optim.SGD` does: the first optimizer of a process makes torch
    load its compiler, a second that every run, and every worker of it, would begin with.
    """
    if training.optimizer == "sgd":
        return _sgd(vector, training.momentum, training.weight_decay)
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind([vector], training.learning_rate, betas=training.betas, weight_decay=training.weight_decay)

    def step(rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    return step


def _sgd(vector: torch.nn.Parameter, momentum: float, decay: float) -> Callable[[float], None]:
    velocity: Tensor | None = None

    @torch.no_grad()
    def step(rate: float) -> None:
        nonlocal velocity
        slope = vector.grad
        assert slope is not None  # made with the workbench
        if decay:
            slope = slope.add(vector, alpha=decay)
        if momentum:
            velocity = slope.clone() if velocity is None else velocity.mul_(momentum).add_(slope)
            slope = velocity
        vector.add_(slope, alpha=-rate)

    return step


@named
def train_locally(
    client: Client,
    *,
    gradient: Gradient | None = None,
    adjust: Callable[[], None] | None = None,
    settle: Callable[[], None] | None = None,
    training: Training | None = None,
    purpose: str = "",
) -> Trained:
    """Trains the client's workbench from where it stands, by the task's recipe.

    Args:
        client: Whose data, recipe and generators.
        gradient: Computes loss and gradient of a batch; by default the mean loss is differentiated.
        adjust: Called between gradient and step; may read and change `workbench.vector.grad`, where it stands.
        settle: Called after each step; may change `workbench.vector`, where it stands. Neither records gradients:
            one that differentiates does so within `torch.enable_grad()`.
        training: A recipe instead of the task's.
        purpose: Names a further training of the same client in the same round, whose draws are its own.

    Raises:
        InputError: If the client has no training examples, or ratings.
        RunError: If the loss is not finite.
    """
    held: object = client.data
    if isinstance(held, ClientRatings):
        raise InputError(
            f"train_locally trains on examples, but client {client.id!r} holds ratings: client.data.train are ids of"
            " its items, and client.data.interactions says what may be drawn as negatives"
        )
    if len(client.data.train) == 0:
        raise InputError(f"client {client.id!r} has no training examples")
    plain = gradient is None and adjust is None and settle is None and training is None and not purpose
    place = place_of(client) if plain else None
    found = recall(place, client) if place else None
    if found:
        return found
    key: tuple[int | str, ...] = ("train", client.round, client.id, *([purpose] if purpose else []))
    with keyed_global_rng(client.seed, *key):  # so that a recalled training moves no draw
        gradient = gradient or mean_loss_gradient(client)
        trained = _train(client, training or client.task.training, gradient, adjust, settle, purpose)
    if place:
        keep(place, client, trained)
    return trained


def _train(
    client: Client,
    training: Training,
    gradient: Gradient,
    adjust: Callable[[], None] | None,
    settle: Callable[[], None] | None,
    purpose: str,
) -> Trained:
    bench, examples = client.workbench, client.data.train
    take_step = make_step(bench.vector, training)
    total = step_count(len(examples), training)
    augment = client.rng("augment" + purpose)
    bench.module.train()
    grad, loss_sum = bench.vector.grad, 0.0
    assert grad is not None  # made with the workbench
    positions = batch_positions(len(examples), training, client.rng("batches" + purpose))
    for step in range(total):
        inputs, targets = examples.batch(next(positions), augment=augment)
        grad.zero_()
        loss = gradient(inputs.to(client.device), targets.to(client.device)).item()
        if not math.isfinite(loss):
            raise RunError(f"client {client.id!r}: the loss is {loss} at step {step + 1} of {total}")
        with torch.no_grad():  # hooks change leaves where they stand
            if adjust:
                adjust()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([bench.vector], training.clip_norm)
            take_step(_rate(training, client.round, step, total))
            if settle:
                settle()
        loss_sum += loss
    return Trained(loss_sum / total, total, len(examples))


def mean_loss_gradient(client: Client, outputs: Callable[[Tensor], Tensor] = lambda same: same) -> Gradient:
    """Differentiates the mean loss of a batch through the client's module.

    Args:
        client: Whose workbench and loss.
        outputs: What becomes of the module's outputs before the loss.
    """
    module, loss_function = client.workbench.module, client.task.loss

    def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
        losses = loss_function(outputs(module(inputs)), targets)
        check_losses(losses, len(targets))
        loss = losses.mean()
        loss.backward()
        return loss.detach()

    return gradient


def _rate(training: Training, round: int, step: int, total: int) -> float:
    rate = training.learning_rate * training.round_decay**round
    if training.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / total))
    return rate


__all__ = [
    "Gradient",
    "Trained",
    "batch_positions",
    "batches_of",
    "make_step",
    "mean_loss_gradient",
    "step_count",
    "train_locally",
]
