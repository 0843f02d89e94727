"""Teaching one network what others say about given inputs (Lin et al., FedDF, NeurIPS 2020, arXiv:2006.07242)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfi.federation.packet import Tree
from fedfi.federation.rng import keyed_global_rng
from fedfi.oneshot.server import Server
from fedfi.oneshot.together import Together

_BATCH = 50

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


def mean_logits(networks: Sequence[nn.Module], party: Sequence[float] | None = None) -> Teacher:
    """The ensemble that averages logits, by weights `party` that add up to 1, or equally."""
    weights = [1 / len(networks)] * len(networks) if party is None else party

    def teacher(inputs: Tensor) -> Tensor:
        return torch.stack([network(inputs) * w for network, w in zip(networks, weights, strict=True)]).sum(0)

    return teacher


def mean_probabilities(networks: Sequence[nn.Module]) -> Teacher:
    """The ensemble that averages class probabilities."""
    return Together(networks).eval()


def distil_on_server(
    server: Server,
    start: Tree,
    teacher: Teacher,
    *,
    steps: int,
    learning_rate: float,
    temperature: float,
    rng: torch.Generator,
) -> Tree:
    """A model after SGD (momentum 0.9, cosine) on what a teacher says of the server's inputs; labels are not used.

    Args:
        server: The network, and examples with the data's own augmentation.
        start: Where the student begins.
        teacher: What is to be said.
        steps: Number of steps of 50 inputs.
        learning_rate: At the first step.
        temperature: Of the divergence.
        rng: Draws batches and augmentation.

    Raises:
        InputError: If the server has no examples.
    """
    examples = server.examples
    if examples is None:
        raise server.without_examples("distil = 'server' needs")

    def batches() -> Iterator[Tensor]:
        while True:
            for part in torch.randperm(len(examples), generator=rng).split(_BATCH):
                if len(part) > 1 or len(examples) == 1:
                    yield examples.batch(part, augment=rng)[0].to(server.task.device)

    student = copy.deepcopy(server.loaded(start)).train()
    optimizer = torch.optim.SGD(student.parameters(), learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drawn = batches()
    with keyed_global_rng(int(torch.randint(2**31, (), generator=rng)), "distil"):  # dropout
        for _ in range(steps):
            distil(student, optimizer, drawn, teacher, steps=1, temperature=temperature)
            schedule.step()
    return tree_of(student, start)


def tree_of(module: nn.Module, like: Tree) -> Tree:
    """Copies of a module's parameters and buffers of the same names as another tree's."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {n: state[n].detach().clone() for n in like}
