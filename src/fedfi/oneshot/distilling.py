"""Teaching one network what others say about given inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Teacher = Callable[[Tensor], Tensor]
"""Inputs `[B, ...]` to logits or log-probabilities `[B, C]`."""


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) per example `[B]` of logits `[B, C]` at a temperature, times its square."""
    p = (teacher / temperature).log_softmax(1)
    q = (student / temperature).log_softmax(1)
    losses: Tensor = functional.kl_div(q, p, reduction="none", log_target=True).sum(1)
    return losses * temperature**2


def distil(
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Tensor],
    teacher: Teacher,
    *,
    steps: int,
    temperature: float,
) -> float:
    """Trains a network to say what a teacher says.

    Args:
        student: The network, trained in place, in the mode that it is in.
        optimizer: Over its parameters.
        batches: Inputs `[B, ...]`, at least `steps` of them.
        teacher: What is to be said.
        steps: Number of steps.
        temperature: Of the divergence.

    Returns:
        The mean loss over the steps.
    """
    total = 0.0
    for _ in range(steps):
        inputs = next(batches)
        with torch.no_grad():
            target = teacher(inputs)
        optimizer.zero_grad()
        loss = divergence(student(inputs), target, temperature).mean()
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / max(steps, 1)


def mean_logits(networks: Sequence[nn.Module]) -> Teacher:
    """The ensemble that averages logits."""

    def teacher(inputs: Tensor) -> Tensor:
        return torch.stack([network(inputs) for network in networks]).mean(0)

    return teacher
