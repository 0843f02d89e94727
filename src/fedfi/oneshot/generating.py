"""Distillation on inputs that a generator makes for it, in stages: DENSE's loop, from any start and of any teacher."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedfi.federation.packet import Tree
from fedfi.federation.rng import keyed_global_rng
from fedfi.models.shapes import as_fed
from fedfi.oneshot.distilling import Teacher, distil, divergence, tree_of
from fedfi.oneshot.generators import generator_for
from fedfi.oneshot.server import Server


@dataclass(frozen=True)
class Stages:
    """What a stage is, and how many there are; see the fields of `dense.DENSE`."""

    stages: int = 20
    noise: int = 256
    batch: int = 256
    generator_steps: int = 30
    generator_rate: float = 1e-3
    bn_weight: float = 1.0
    adversarial_weight: float = 1.0
    steps: int = 200
    learning_rate: float = 0.01
    temperature: float = 20.0


def distil_on_generated(
    server: Server,
    start: Tree,
    networks: Sequence[nn.Module],
    teacher: Teacher,
    recipe: Stages,
    rng: torch.Generator,
) -> tuple[Tree, int]:
    """Teaches a model what a teacher says of generated inputs.

    Args:
        server: The network; its examples, if there are any, choose the stage.
        start: Where the student begins.
        networks: The clients' networks, frozen, whose batch norms the inputs should fit.
        teacher: What is to be said, a function of these networks.
        recipe: The stages.
        rng: Source of all draws.

    Returns:
        The student after the best stage, or the last, and that stage; 0 is the start.
    """
    judged = server.examples is not None
    best, at, top = start, 0, server.score(start) if judged else 0.0
    with keyed_global_rng(int(torch.randint(2**31, (), generator=rng)), "dense"):
        student = copy.deepcopy(server.loaded(start))
        generator = generator_for(server.task.data.spec, recipe.noise)
        generator = generator.to(server.task.device, as_fed(torch.zeros(1), student).dtype)
        adam = torch.optim.Adam(generator.parameters(), recipe.generator_rate)
        sgd = torch.optim.SGD(student.parameters(), recipe.learning_rate, momentum=0.9)
        pool: list[Tensor] = []
        for stage in range(1, recipe.stages + 1):
            pool.append(_generate(server, generator, adam, student, networks, teacher, recipe, rng))
            student.train()
            batches = _drawn(torch.cat(pool), recipe.batch, rng)
            distil(student, sgd, batches, teacher, steps=recipe.steps, temperature=recipe.temperature)
            model = tree_of(student, start)
            score = server.score(model) if judged else float(stage)
            if score > top:
                best, at, top = model, stage, score
    return best, at


def _generate(
    server: Server,
    generator: nn.Module,
    adam: torch.optim.Optimizer,
    student: nn.Module,
    networks: Sequence[nn.Module],
    teacher: Teacher,
    recipe: Stages,
    rng: torch.Generator,
) -> Tensor:
    """Trains the generator on one batch of noise and returns the best inputs `[batch, ...]` it made of it."""
    spec, device = server.task.data.spec, server.task.device
    noise = as_fed(torch.randn(recipe.batch, recipe.noise, generator=rng).to(device), generator)
    labels = torch.randint(spec.classes, (recipe.batch,), generator=rng).to(device)
    generator.train()
    student.eval()
    best: Tensor | None = None
    lowest = float("inf")
    with _BatchNormLoss(networks) as statistics:
        for _ in range(recipe.generator_steps):
            adam.zero_grad()
            made = generator(noise)
            statistics.reset()
            said = teacher(made)
            own = student(made)
            apart = (said.argmax(1) != own.argmax(1)).to(said.dtype)
            loss = functional.cross_entropy(said, labels) + recipe.bn_weight * statistics.value(said)
            loss = loss - recipe.adversarial_weight * (divergence(own, said) * apart).mean()
            loss.backward()
            adam.step()
            if float(loss.detach()) < lowest or best is None:
                best, lowest = made.detach(), float(loss.detach())
    assert best is not None  # there is at least one step
    return best


class _BatchNormLoss:
    """Adds up, over batch norms and clients, how far a batch's mean and variance are from the running ones."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._norms = [
            m for net in networks for m in net.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
        ]
        self._networks, self._terms = len(networks), list[Tensor]()

    def __enter__(self) -> _BatchNormLoss:
        self._hooks = [norm.register_forward_pre_hook(self._note) for norm in self._norms]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def reset(self) -> None:
        """Begins a new pass."""
        self._terms = []

    def value(self, like: Tensor) -> Tensor:
        """The loss of the pass since `reset`."""
        if not self._terms:
            return like.new_zeros(())
        total: Tensor = torch.stack(self._terms).sum() / self._networks
        return total

    def _note(self, norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, _BatchNorm)
        x = arguments[0]
        axes = [a for a in range(x.ndim) if a != 1]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        apart = (x.mean(axes) - norm.running_mean).norm() + (x.var(axes, correction=0) - norm.running_var).norm()
        self._terms.append(apart)


def _drawn(pool: Tensor, batch: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Batches of the pool in fresh random order, over and over."""
    while True:
        for part in torch.randperm(len(pool), generator=rng).split(min(batch, len(pool))):
            if len(part) > 1:
                yield pool[part.to(pool.device)]
