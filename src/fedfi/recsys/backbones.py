"""What turns the rows of an item table into scores: the part of a recommender that stays with its user.

Shapes: ``n`` users, ``l`` items each, ``d`` numbers an item. A head is a tree whose tensors begin with the axis of
users; rows are ``[n, l, d]``, logits ``[n, l]``. All users begin with the same head, which comes from the run's seed
and is never sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedfi.federation.packet import Tree
from fedfi.numerics.steady import matmul

BackboneName = Literal["mf", "ncf", "pfedrec"]


class Backbone(Protocol):
    """A scoring function with parameters of its own.

    Attributes:
        weight: Name of the vector ``[n, d]`` where a logit is its product with an item's row, plus `bias`; empty
            where the score is another function.
        bias: Name of the number ``[n, 1]`` that is added, or empty.
    """

    @property
    def weight(self) -> str: ...  # noqa: D102
    @property
    def bias(self) -> str: ...  # noqa: D102

    def head(self, dimension: int, rng: torch.Generator) -> Tree:
        """The first values of one user's head, without the axis of users."""
        ...

    def logits(self, head: Tree, rows: Tensor) -> Tensor:
        """Scores ``[n, l]`` of rows ``[n, l, d]``."""
        ...


@dataclass(frozen=True)
class MatrixFactorisation:
    """The product of a user's vector and an item's row."""

    weight: str = "user"
    bias: str = ""

    def head(self, dimension: int, rng: torch.Generator) -> Tree:
        """A user vector ``[d]``."""
        return {"user": _uniform((dimension,), dimension, rng)}

    def logits(self, head: Tree, rows: Tensor) -> Tensor:
        """Row times vector."""
        return matmul(rows, head["user"][:, :, None])[:, :, 0]


@dataclass(frozen=True)
class LinearHead:
    """A user's own linear layer with one output: a vector ``[d]`` and a bias, which no ranking can feel."""

    weight: str = "weight"
    bias: str = "bias"

    def head(self, dimension: int, rng: torch.Generator) -> Tree:
        """Weight ``[d]`` and bias ``[1]``."""
        return {"weight": _uniform((dimension,), dimension, rng), "bias": _uniform((1,), dimension, rng)}

    def logits(self, head: Tree, rows: Tensor) -> Tensor:
        """Row times weight, plus bias."""
        return matmul(rows, head["weight"][:, :, None])[:, :, 0] + head["bias"]


@dataclass(frozen=True)
class NeuralHead:
    """A user vector beside an item's row, through two hidden layers of ``d`` and ``d // 2`` units."""

    weight: str = ""
    bias: str = ""

    def head(self, dimension: int, rng: torch.Generator) -> Tree:
        """User vector ``[d]``, and weights ``[outputs, inputs]`` and biases of the three layers."""
        sizes = [2 * dimension, dimension, max(1, dimension // 2), 1]
        tree = {"user": _uniform((dimension,), dimension, rng)}
        for number, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
            tree[f"layer{number}.weight"] = _uniform((outputs, inputs), inputs, rng)
            tree[f"layer{number}.bias"] = _uniform((outputs,), inputs, rng)
        return tree

    def logits(self, head: Tree, rows: Tensor) -> Tensor:
        """The network's output."""
        return self.network(head, torch.cat([head["user"][:, None].expand_as(rows), rows], 2))

    def network(self, head: Tree, x: Tensor) -> Tensor:
        """The output ``[n, l]`` for users' vectors beside items' rows ``[n, l, 2 d]``."""
        for number in (1, 2, 3):
            weight, bias = head[f"layer{number}.weight"], head[f"layer{number}.bias"]
            x = matmul(x, weight.transpose(1, 2)) + bias[:, None]
            x = x.relu() if number < 3 else x
        return x[:, :, 0]


BACKBONES: dict[str, Backbone] = {
    "mf": MatrixFactorisation(),
    "pfedrec": LinearHead(),
    "ncf": NeuralHead(),
}


def _uniform(shape: tuple[int, ...], inputs: int, rng: torch.Generator) -> Tensor:
    """As torch initialises linear layers."""
    bound = 1.0 / math.sqrt(inputs)
    return torch.empty(shape).uniform_(-bound, bound, generator=rng)
