r"""The diagonal of the Fisher information of a network, and what it is used to measure.

Shape convention: B examples a batch, C classes; results have the shapes of the parameters.

| kind | estimate of F_j |
|---|---|
| `example` | mean over examples of (d loss_b / d theta_j)^2: the empirical Fisher, Eqs. 7-8 of FedFIbOS [1] |
| `batch` | mean over batches of (d mean loss / d theta_j)^2, line 14 of its Algorithm 1 before the division by B |
| `exact` | mean over examples of sum_y p(y\|x) (d log p(y\|x) / d theta_j)^2, labels from the model |

They rank coordinates differently: one whose per-example gradients cancel counts under `example` only.

[1] FedFIbOS: Fisher-importance-based optimal submodel extraction, arXiv:2609.19559.
"""

import math
from collections.abc import Collection, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from fedfi.numerics.gradients import (
    Loss,
    Named,
    batch_gradient,
    exact_squares,
    example_sums,
    selected_parameters,
    wide,
)

__all__ = ["coefficient_of_variation", "diagonal_fisher", "example_squares", "masking_error", "usual_chunk"]

_PIECE = 1 << 20
"""Entries that are widened to float64 at once, so that a large network costs no second copy of itself."""


def diagonal_fisher(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss,
    *,
    kind: Literal["batch", "example", "exact"],
    chunk: int | None = None,
    names: Collection[str] | None = None,
) -> Named:
    """Estimates the diagonal Fisher information; the model is left as found and runs in the mode it is in.

    In training mode dropout draws a fresh mask from torch's default generator for each gradient.

    Args:
        model: any module that takes the inputs of a batch; for `exact` it returns logits `[B, C]`.
        batches: pairs of inputs `[B, ...]` and targets `[B, ...]`, on the model's device.
        loss: outputs and targets to the unreduced losses `[B]`; not used by `exact`.
        kind: see the table of this module. `exact` costs C gradients an example.
        chunk: how many gradients are held at once by `example` and `exact` (memory: chunk x parameters); None
            chooses, see `usual_chunk`.
        names: the parameters wanted; None means all that require gradients.

    Returns:
        The estimate per parameter name, in the parameter's shape; at least float32.

    Raises:
        ValueError: for no batches, an empty batch, an unknown kind or name, chunk < 1, a reduced loss,
            outputs that are not `[B, C]` (`exact`), or, except for `batch`, a layer that mixes examples.
    """
    if kind not in ("batch", "example", "exact"):
        raise ValueError(f"kind is {kind!r}; expected 'batch', 'example' or 'exact'")
    parameters = selected_parameters(model, names)
    step = usual_chunk(model) if chunk is None else chunk
    sums = {name: torch.zeros_like(value, dtype=wide(value)) for name, value in parameters.items()}
    weight = 0
    for inputs, targets in batches:
        if kind == "batch":
            added, count = _squared(batch_gradient(model, parameters, inputs, targets, loss)), 1
        elif kind == "example":
            (_, added, _), count = example_sums(model, parameters, inputs, targets, loss, step), len(inputs)
        else:
            added, count = exact_squares(model, parameters, inputs, step), len(inputs)
        weight += count
        for name, value in added.items():
            sums[name] += value
    if not weight:
        raise ValueError("no batches were given; expected at least one")
    return {name: value / weight for name, value in sums.items()}


def example_squares(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    chunk: int | None = None,
    names: Collection[str] | None = None,
) -> tuple[Named, Named, Tensor]:
    """One pass that gives a training step its gradient and the per-example squares of Eq. 8 of FedFIbOS.

    Args:
        model: any module; left as found.
        x: inputs `[B, ...]`.
        y: targets `[B, ...]`.
        loss: outputs and targets to the unreduced losses `[B]`.
        chunk: how many per-example gradients are held at once; None chooses, see `usual_chunk`.
        names: the parameters wanted; None means all that require gradients.

    Returns:
        The mean gradient and the mean squared gradient over the B examples, per parameter name, and the mean
        loss (a scalar), all detached.

    Raises:
        ValueError: as in `diagonal_fisher`.
    """
    parameters = selected_parameters(model, names)
    gradients, squares, total = example_sums(
        model, parameters, x, y, loss, usual_chunk(model) if chunk is None else chunk
    )
    mean = {name: (value / len(x)).to(parameters[name].dtype) for name, value in gradients.items()}
    return mean, {name: value / len(x) for name, value in squares.items()}, total / len(x)


def usual_chunk(model: nn.Module) -> int:
    """How many per-example gradients are computed at once: 32, but 1 for convolutions on a CPU.

    There the per-example weights of a chunk become one grouped convolution, several times slower than a plain one.
    """
    convolves = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in model.modules())
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    return 1 if convolves and on_cpu else 32


def coefficient_of_variation(t: Tensor) -> float:
    """CV_F of FedFIbOS: standard deviation (of the population) over mean, in float64; 0 when all are 0.

    Raises:
        ValueError: for an empty tensor, values that are not finite, or mean 0 though not all are 0.
    """
    values = t.detach().reshape(-1)
    if not values.numel() or not bool(torch.isfinite(values).all()):
        raise ValueError(f"the tensor of shape {list(t.shape)} is empty or not finite; expected finite values")
    if not bool(values.any()):
        return 0.0
    mean = sum(float(piece.double().sum()) for piece in values.split(_PIECE)) / values.numel()
    if mean == 0:
        raise ValueError("the values have mean 0 but are not all 0; expected non-negative values")
    squares = sum(float((piece.double() - mean).square().sum()) for piece in values.split(_PIECE))
    return math.sqrt(squares / values.numel()) / mean


def masking_error(fisher: Tensor, x: Tensor, mask: Tensor) -> float:
    """Eq. 4 of FedFIbOS: the sum of F_j^2 x_j^2 over the coordinates off the mask, in float64.

    It approximates || H (x * M - x) ||^2, how much masking changes the gradient near a stationary point, with
    the Fisher diagonal for the Hessian H.

    Args:
        fisher: F, of any shape.
        x: the parameters, in the same shape.
        mask: boolean, True where a parameter is kept, in the same shape.

    Raises:
        ValueError: for differing shapes or a mask that is not boolean.
    """
    if not fisher.shape == x.shape == mask.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"fisher {list(fisher.shape)}, x {list(x.shape)} and mask {list(mask.shape)} ({mask.dtype}); "
            "expected one shape and a boolean mask"
        )
    pieces = zip(*(t.detach().reshape(-1).split(_PIECE) for t in (fisher, x, mask)), strict=True)
    return sum(float((f.double() * w.double() * ~m).square().sum()) for f, w, m in pieces)


def _squared(gradient: Named) -> Named:
    return {name: value.to(wide(value)).square() for name, value in gradient.items()}
