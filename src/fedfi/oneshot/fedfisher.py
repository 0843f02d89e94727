"""FedFisher: Jhunjhunwala, Wang, Joshi, AISTATS 2024, arXiv:2403.12329.

| paper | here |
|---|---|
| sum_k p_k (w - w_k)^T F_k (w - w_k), Eq. 7 | `quadratic_slope` is its gradient |
| F_k diagonal, or K-FAC: A_k (x) G_k a layer | `curvature = "diagonal" | "kfac"`; `numerics.kfac.Factors` |
| server optimiser from the mean of the models | `descend`, `Adaptive` (`steps`, `learning_rate`) |
| validation every so many steps, the best is kept | `check_every` |
| SVD and 8-bit factors, to match FedAvg's upload | `wire` (`upload_bits = 16`) |

The optimiser is that of the authors' program (github.com/Divyansh03/FedFisher, algs/fisher_avg.py), `Adaptive`: sums of
past slopes and of their squares, and 0.01 under the root, so that where the curvature is flat nothing moves. Adam
takes steps of equal length there, too.

The Fisher information is an expectation over the model's labels, as in the paper and the program, at a backward pass a
class; `fisher = "observed"` takes one in all. That is no small matter: on what a client has learnt, the observed
labels' factors are smaller than the model's by the probability of an error, so that where clients are sure the
quadratic is flat, and its minimum can be worse than the plain mean.

Deviations: parameters without factors (norms, embeddings) stay at the mean. The 0.01 stands under the root for
diagonals as well. Without server examples the last iterate is taken, with them the start is a candidate, too. Factors
are cut to roots of one rank (`wire`), where the program keeps both sides of a decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.federation.warming import OPTIMIZERS
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.given import check_choice, check_diagonals, check_models
from fedfi.oneshot.matrices import check_factors, factors_by_layer, matrix_of, split
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.uploads import Merged, Upload, shares

Curvature = Literal["kfac", "diagonal"]
Slope = Callable[[Mapping[str, Tensor]], Tree]


def quadratic_slope(
    models: Sequence[Mapping[str, Tensor]],
    curvatures: Sequence[Mapping[str, Tensor]],
    party: Sequence[float],
    kind: Curvature,
) -> Slope:
    """The gradient of 1/2 sum_k p_k (w - w_k)^T F_k (w - w_k), for the parameters that have curvature.

    Args:
        models: K models.
        curvatures: K diagonals by parameter, or K statistics `kfac`.
        party: p, K weights.
        kind: Which of the two.

    Raises:
        InputError: If models, curvatures and weights do not fit together.
    """
    check_models(models, party)
    check_choice("kind", kind, Curvature)
    if kind == "diagonal":
        check_diagonals("curvatures", curvatures, models)

        def diagonal(w: Mapping[str, Tensor]) -> Tree:
            triples = list(zip(models, curvatures, party, strict=True))
            return {n: torch.stack([p * f[n] * (w[n] - m[n]) for m, f, p in triples]).sum(0) for n in curvatures[0]}

        return diagonal
    check_factors("curvatures", curvatures, models)
    factors = [factors_by_layer(c) for c in curvatures]

    def kronecker(w: Mapping[str, Tensor]) -> Tree:
        found: Tree = {}
        for layer in factors[0]:
            here = matrix_of(w, layer)
            slope = torch.zeros_like(here)
            for model, factor, p in zip(models, factors, party, strict=True):
                slope += p * factor[layer].times(here - matrix_of(model, layer))
            found |= split(slope, w, layer)
        return found

    return kronecker


class Adaptive(torch.optim.Optimizer):
    """Steps of m / sqrt(s + 0.01) with m <- 0.9 m + slope and s <- 0.99 s + slope^2.

    Args:
        leaves: What is moved.
        lr: Factor of the steps.
    """

    def __init__(self, leaves: list[Tensor], lr: float) -> None:
        super().__init__(leaves, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One step along the leaves' `grad`."""
        for group in self.param_groups:
            for leaf in group["params"]:
                held = self.state[leaf]
                if not held:
                    held |= {"sum": torch.zeros_like(leaf), "squares": torch.zeros_like(leaf)}
                held["sum"].mul_(0.9).add_(leaf.grad)
                held["squares"].mul_(0.99).addcmul_(leaf.grad, leaf.grad)
                leaf.addcdiv_(held["sum"], (held["squares"] + 0.01).sqrt_(), value=-group["lr"])


def descend(
    start: Mapping[str, Tensor],
    slope: Slope,
    *,
    steps: int,
    learning_rate: float,
    check_every: int,
    score: Callable[[Tree], float] | None = None,
    optimizer: Callable[[list[Tensor], float], torch.optim.Optimizer] = Adaptive,
) -> tuple[Tree, int]:
    """Steps of an optimiser from a model along a gradient.

    Args:
        start: Where it begins.
        slope: The gradient of some of its parameters.
        steps: Number of steps.
        learning_rate: Of the optimiser.
        check_every: Steps between judgements; the start is judged too.
        score: Judges a model, larger is better; None: the last one is taken.
        optimizer: Makes it, of the parameters and the learning rate.

    Returns:
        The best model, or the last, and its step.
    """
    names = list(slope(start))
    leaves = {n: start[n].clone() for n in names}
    mover = optimizer(list(leaves.values()), learning_rate)

    def whole() -> Tree:
        return {n: leaves[n].clone() if n in leaves else t for n, t in start.items()}

    best, top, at = whole(), score(whole()) if score else 0.0, 0
    for step in range(1, steps + 1):
        slopes = slope(leaves | {n: t for n, t in start.items() if n not in leaves})
        for name, leaf in leaves.items():
            leaf.grad = slopes[name].to(leaf.dtype)
        mover.step()
        if score is None:
            continue
        if step % check_every == 0 or step == steps:
            value = score(whole())
            if value > top:
                best, top, at = whole(), value, step
    return (best, at) if score else (whole(), steps)


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedFisher(OneShot):
    """The minimum of the sum of clients' quadratic approximations, found by an optimiser on the server."""

    curvature: Annotated[Curvature, Field(description="Kronecker factors of each layer, or the diagonal")] = "kfac"
    fisher: Annotated[
        Literal["exact", "observed"], Field(description="labels from the model, in expectation, or the observed ones")
    ] = "exact"
    steps: Annotated[int, Field(ge=1, description="steps of the server's optimiser")] = 2000
    learning_rate: Annotated[float, Field(gt=0, description="of the server's optimiser")] = 0.01
    check_every: Annotated[int, Field(ge=1, description="steps from one validation to the next")] = 100

    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("check_every", "examples"),
    )

    def needs(self) -> tuple[str, ...]:
        """Kronecker factors, or the diagonal."""
        if self.curvature == "kfac":
            return ("exact-kfac",) if self.fisher == "exact" else ("kfac",)
        return ("exact",) if self.fisher == "exact" else ("fisher",)

    def loads(self) -> tuple[str, ...]:
        """What torch's optimizers need."""
        return (OPTIMIZERS,)

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Descends from the mean."""
        (kind,) = self.needs()
        party, models = shares(uploads, self.weights), [u.model for u in uploads]
        slope = quadratic_slope(models, [u.measured(kind) for u in uploads], party, self.curvature)
        model, step = descend(
            mean(models, party),
            slope,
            steps=self.steps,
            learning_rate=self.learning_rate,
            check_every=self.check_every,
            score=context.server.score if context.server.examples is not None else None,
        )
        return Merged(model, {"merge/step": float(step)})
