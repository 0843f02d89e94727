"""What a recommender's scores are trained for.

A positive stands before its ``n`` negatives in every batch. Pointwise training takes each example alone; the others
take a positive with its negatives as one group of ``n + 1``, so their batches hold whole groups.

| name | loss of one term, s+ the score of the positive, s- of its negatives | source |
|---|---|---|
| `bce` | log(1 + e^s) - y s, for each example of label y | the published recommenders |
| `bpr` | mean over negatives of log(1 + e^(s- - s+)) | Rendle et al., UAI 2009, arXiv:1205.2618 |
| `softmax` | log(e^s+ + sum e^s-) - s+ | sampled softmax; Wu et al., TOIS 2024, arXiv:2201.02327 |

A step is taken on the mean over terms. Each has two forms: `losses`, which autograd goes through, and `closed`, the
losses together with their gradients in the scores. Sums within a group are written out, column after column, since the
order of a reduction may depend on how many other groups there are.

Shapes: scores and labels ``[..., e]``, terms ``[..., t]`` with ``t = e / group``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedfi.numerics.steady import elementwise, full

LossName = Literal["bce", "bpr", "softmax"]


class Objective(Protocol):
    """A loss of scores.

    Attributes:
        group: How many neighbouring examples make a term.
    """

    @property
    def group(self) -> int: ...  # noqa: D102

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The terms ``[..., t]`` of scores ``[..., e]``, by operations that autograd knows."""
        ...

    def closed(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The terms ``[t]`` and the gradient of their sum in the scores ``[e]``."""
        ...


@dataclass(frozen=True)
class Pointwise:
    """Binary cross-entropy of each example."""

    group: int = 1

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """log(1 + e^s) - y s."""
        return functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")

    def closed(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient is sigmoid(s) - y."""
        losses = elementwise(functional.softplus, scores) - labels * scores
        return losses, elementwise(torch.sigmoid, scores) - labels


@dataclass(frozen=True)
class Pairwise:
    """Bayesian personalised ranking: a positive against each of its negatives."""

    group: int

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over negatives of log(1 + e^(s- - s+))."""
        positive, *negatives = _columns(scores, self.group)
        return _sum([functional.softplus(s - positive) for s in negatives]) / len(negatives)

    def closed(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient is sigmoid(s- - s+) / n for a negative, and minus their sum for the positive."""
        positive, *negatives = _padded(scores, self.group)
        apart = [s - positive for s in negatives]
        each = [torch.sigmoid(a) / len(negatives) for a in apart]
        losses = _sum([functional.softplus(a) for a in apart]) / len(negatives)
        return _unpadded(losses, [-_sum(each), *each], len(scores))


@dataclass(frozen=True)
class SampledSoftmax:
    """Cross-entropy of the positive among itself and its negatives."""

    group: int

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """log(e^s+ + sum e^s-) - s+."""
        columns = _columns(scores, self.group)
        highest = _highest(columns).detach()
        return _sum([(s - highest).exp() for s in columns]).log() + highest - columns[0]

    def closed(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient is the share of each score, less 1 for the positive."""
        columns = _padded(scores, self.group)
        highest = _highest(columns)
        powers = [(s - highest).exp() for s in columns]
        total = _sum(powers)
        positive, *negatives = [p / total for p in powers]
        return _unpadded(total.log() + highest - columns[0], [positive - 1.0, *negatives], len(scores))


def objective(name: LossName, negatives: int) -> Objective:
    """The objective of a name, for so many negatives a positive (at least 1)."""
    if name == "bce":
        return Pointwise()
    return Pairwise(negatives + 1) if name == "bpr" else SampledSoftmax(negatives + 1)


def _columns(scores: Tensor, group: int) -> list[Tensor]:
    """Scores ``[..., e]`` as `group` tensors ``[..., t]``."""
    return [c.contiguous() for c in scores.unflatten(-1, (-1, group)).unbind(-1)]


def _padded(scores: Tensor, group: int) -> list[Tensor]:
    """The columns of scores ``[e]``, filled up with zeros to a length that fills registers."""
    number = len(scores) // group
    return [functional.pad(c, (0, full(number) - number)) for c in _columns(scores, group)]


def _unpadded(losses: Tensor, gradients: list[Tensor], length: int) -> tuple[Tensor, Tensor]:
    number = length // len(gradients)
    return losses[:number], torch.stack(gradients, 1)[:number].reshape(-1)


def _sum(columns: list[Tensor]) -> Tensor:
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return total


def _highest(columns: list[Tensor]) -> Tensor:
    highest = columns[0]
    for column in columns[1:]:
        highest = torch.maximum(highest, column)
    return highest
