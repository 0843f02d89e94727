"""DENSE: Zhang et al., DENSE: data-free one-shot federated learning, NeurIPS 2022, arXiv:2112.12371.

| paper | here |
|---|---|
| ensemble D(x): mean of the clients' logits, Eq. 1 | `distilling.mean_logits` |
| L_CE, generated images that the ensemble gives a drawn class, Eq. 2 | cross-entropy in `_generate` |
| L_BN, distance from the clients' batch norm statistics, Eq. 3 | `_BatchNormLoss`, weight `bn_weight` |
| L_div = - omega KL(D(x), f_S(x)), omega = 1 where they disagree, Eqs. 4, 5 | `adversarial_weight` |
| distillation KL(D(x), f_S(x)), Eq. 6; temperature 20 | `distilling.distil`, `temperature` |
| stages: 30 Adam steps for the generator, then distillation on all images made so far | `stages`, `generator_steps` |

Deviations: the student starts from the mean of the models and the best stage on the server's examples is kept, as in
FedFiOT's comparison (without examples: the last stage). Tables get a generator of linear layers; text has none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Annotated, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.federation.rng import keyed_global_rng
from fedfi.oneshot.distilling import Teacher, distil, divergence, mean_logits
from fedfi.oneshot.generators import generator_for
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.uploads import Merged, Upload, shares


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class DENSE(OneShot):
    """The clients' ensemble distilled into one model, on inputs from a generator."""

    stages: Annotated[int, Field(ge=1, description="stages of generation and distillation")] = 20
    noise: Annotated[int, Field(ge=1, description="length of the generator's noise")] = 256
    batch: Annotated[int, Field(ge=2, description="inputs made a stage, and a distillation batch")] = 256
    generator_steps: Annotated[int, Field(ge=1, description="Adam steps of the generator a stage")] = 30
    generator_rate: Annotated[float, Field(gt=0, description="learning rate of the generator")] = 1e-3
    bn_weight: Annotated[float, Field(ge=0, description="weight of the batch norm loss")] = 1.0
    adversarial_weight: Annotated[float, Field(ge=0, description="weight of the disagreement loss")] = 1.0
    steps: Annotated[int, Field(ge=1, description="distillation steps a stage")] = 200
    learning_rate: Annotated[float, Field(gt=0, description="learning rate of distillation (SGD, momentum 0.9)")] = 0.01
    temperature: Annotated[float, Field(gt=0, description="temperature of distillation")] = 20.0

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Distils from the mean."""
        server = context.server
        start = mean([u.model for u in uploads], shares(uploads, self.weights))
        networks = [copy.deepcopy(server.loaded(u.model)).requires_grad_(False) for u in uploads]
        teacher = mean_logits(networks)
        judged = server.examples is not None
        best, at, top = start, 0, server.score(start) if judged else 0.0
        with keyed_global_rng(int(torch.randint(2**31, (), generator=context.rng)), "dense"):
            generator = generator_for(server.task.data.spec, self.noise).to(server.task.device)
            student = copy.deepcopy(server.loaded(start))
            adam = torch.optim.Adam(generator.parameters(), self.generator_rate)
            sgd = torch.optim.SGD(student.parameters(), self.learning_rate, momentum=0.9)
            pool: list[Tensor] = []
            for stage in range(1, self.stages + 1):
                pool.append(self._generate(generator, adam, student, networks, teacher, context))
                student.train()
                batches = _drawn(torch.cat(pool), self.batch, context.rng)
                distil(student, sgd, batches, teacher, steps=self.steps, temperature=self.temperature)
                model = _tree(student, start)
                score = server.score(model) if judged else float(stage)
                if score > top:
                    best, at, top = model, stage, score
        return Merged(best, {"merge/stage": float(at)})

    def _generate(
        self,
        generator: nn.Module,
        adam: torch.optim.Optimizer,
        student: nn.Module,
        networks: Sequence[nn.Module],
        teacher: Teacher,
        context: Context,
    ) -> Tensor:
        """Trains the generator on one batch of noise and returns the best inputs `[batch, ...]` it made of it."""
        spec, device = context.server.task.data.spec, context.server.task.device
        noise = torch.randn(self.batch, self.noise, generator=context.rng).to(device)
        labels = torch.randint(spec.classes, (self.batch,), generator=context.rng).to(device)
        generator.train()
        student.eval()
        best: Tensor | None = None
        lowest = float("inf")
        with _BatchNormLoss(networks) as statistics:
            for _ in range(self.generator_steps):
                adam.zero_grad()
                made = generator(noise)
                statistics.reset()
                said = teacher(made)
                own = student(made)
                apart = (said.argmax(1) != own.argmax(1)).to(said.dtype)
                loss = functional.cross_entropy(said, labels) + self.bn_weight * statistics.value(said)
                loss = loss - self.adversarial_weight * (divergence(own, said) * apart).mean()
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


def _tree(module: nn.Module, like: Tree) -> Tree:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {n: state[n].detach().clone() for n in like}
