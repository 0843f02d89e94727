r"""Kronecker factors of the empirical Fisher information, layer by layer, and matrices of few columns for them.

Shape convention: a layer's weight is the matrix `[out, in]`, with the bias as a last column where there is one
(`[out, in + 1]`); a convolution's inputs are its patches, `in` = channels x kernel. B examples, T positions.

    F ~ G (x) A,   A = mean_b sum_t a_bt a_bt^T,   G = mean_b 1/T sum_t g_bt g_bt^T

(for labels from the model G is also the mean over them)
with inputs a and slopes g (Martens, Grosse, ICML 2015; Grosse, Martens, ICML 2016 for convolutions). F acts on a
matrix M as G M A. For one example and one position the approximation is exact.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedfi.numerics.diagonal import is_plain, unfolded
from fedfi.numerics.gradients import Loss, require_separable
from fedfi.numerics.tape import Record, listen, record, record_labels, used_once

__all__ = ["Factors", "full_fisher", "gram_matrices", "kronecker_factors", "matrix_layers", "root"]


@dataclass(frozen=True, eq=False)
class Factors:
    """The two factors of a layer.

    Attributes:
        inputs: A, `[in, in]`, or `[in + 1, in + 1]` with a bias.
        outputs: G, `[out, out]`.
    """

    inputs: Tensor
    outputs: Tensor

    def times(self, matrix: Tensor) -> Tensor:
        """F on a matrix `[out, in (+ 1)]`, in the same shape."""
        return self.outputs @ matrix @ self.inputs

    def dense(self) -> Tensor:
        """F `[out in, out in]`, on matrices flattened row by row; for small layers."""
        return torch.kron(self.outputs, self.inputs)


def matrix_layers(model: nn.Module) -> list[str]:
    """Names of the layers that have factors: linear ones, and convolutions of one group padded by zeros.

    A layer that shares a parameter with another is none: its matrix is not its own.
    """
    return _unshared(model, [name for name, layer in model.named_modules() if _is_matrix(layer)])


def kronecker_factors(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], loss: Loss | None
) -> dict[str, Factors]:
    """The factors of every layer of `matrix_layers` that one pass calls once.

    Args:
        model: Left as found; it must not mix examples in the mode it is in.
        batches: Pairs of inputs `[B, ...]` and targets `[B, ...]`.
        loss: Outputs and targets to the unreduced losses `[B]`; None: labels from the model, in expectation, of a
            model that returns logits `[B, C]`. That is one pass back a class.

    Raises:
        ValueError: For no batches, or what `tape.record` refuses.
    """
    require_separable(model)
    sums: dict[str, list[Tensor]] = {}
    names: set[str] | None = None
    count = 0
    for inputs, targets in batches:
        names = used_once(model, inputs[:1], matrix_layers(model)) if names is None else names
        for number, records in enumerate(_passes(model, inputs, targets, loss, names)):
            for seen in records:
                a, g = _rows(seen)
                if seen.name not in sums:
                    sums[seen.name] = [a.new_zeros(a.shape[1], a.shape[1]), g.new_zeros(g.shape[1], g.shape[1])]
                if number == 0:  # inputs are the same in every pass
                    sums[seen.name][0] += a.T @ a
                sums[seen.name][1] += g.T @ g / (len(g) / len(inputs))
        count += len(inputs)
    if not count:
        raise ValueError("no batches were given; expected at least one")
    return {name: Factors(a / count, g / count) for name, (a, g) in sums.items()}


def full_fisher(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], loss: Loss | None, layer: str) -> Tensor:
    """The mean over examples of the outer product of the gradient of a layer's matrix, flattened row by row.

    Args:
        model: As for `kronecker_factors`.
        batches: Pairs of inputs `[B, ...]` and targets `[B, ...]`.
        loss: As for `kronecker_factors`; None: labels from the model.
        layer: Name of one of `matrix_layers`, called once a pass.

    Returns:
        `[out in, out in]`, with `in + 1` for `in` where there is a bias.

    Raises:
        ValueError: For no batches, or what `tape.record` refuses.
    """
    total: Tensor | None = None
    count = 0
    for inputs, targets in batches:
        for (seen,) in _passes(model, inputs, targets, loss, [layer]):
            a, g = _rows(seen)
            size = len(inputs)
            gradients = torch.einsum("bti,bto->boi", a.view(size, -1, a.shape[1]), g.view(size, -1, g.shape[1]))
            flat = gradients.flatten(1)
            total = flat.T @ flat if total is None else total + flat.T @ flat
        count += len(inputs)
    if total is None:
        raise ValueError("no batches were given; expected at least one")
    return total / count


def _passes(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss | None, names: Collection[str]
) -> Iterator[list[Record]]:
    if loss is None:
        return record_labels(model, inputs, names)
    return iter([record(model, inputs, targets, loss, names)])


def gram_matrices(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """X^T X / n of the inputs `[n, in]` of every linear layer that one pass calls once (no bias column).

    Layers that share a parameter with another have none.

    Args:
        model: Left as found, run in the mode it is in.
        batches: Inputs `[B, ...]`.

    Raises:
        ValueError: For no batches.
    """
    linear = _unshared(model, [name for name, layer in model.named_modules() if is_plain(layer, nn.Linear)])
    sums: dict[str, Tensor] = {}
    rows: dict[str, int] = {}

    def note(name: str, x: Tensor) -> None:
        flat = x.detach().flatten(0, -2)
        sums[name] = sums.get(name, 0) + flat.T @ flat
        rows[name] = rows.get(name, 0) + len(flat)

    names: set[str] | None = None
    layers = dict(model.named_modules())
    for inputs in batches:
        names = used_once(model, inputs[:2], linear) if names is None else names
        hooks = (
            layers[n].register_forward_pre_hook(lambda _, arguments, n=n: note(n, arguments[0])) for n in sorted(names)
        )
        listen(model, hooks, [inputs])
    if names is None:
        raise ValueError("no batches were given; expected at least one")
    return {name: total / rows[name] for name, total in sums.items()}


def root(matrix: Tensor, rank: int) -> Tensor:
    """The best R `[n, rank]` with R R^T near a symmetric positive semi-definite matrix `[n, n]`.

    It is made of the eigenvectors of the largest eigenvalues; negative ones, which rounding may leave, count as zero.

    Raises:
        ValueError: If the matrix is not square, or the rank is not from 1 to n.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not 1 <= rank <= len(matrix):
        raise ValueError(f"rank {rank} of a matrix {list(matrix.shape)}; expected [n, n] and a rank from 1 to n")
    values, vectors = torch.linalg.eigh(matrix.double())
    chosen: Tensor = vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()
    return chosen.flip(1).to(matrix.dtype).contiguous()


def _unshared(model: nn.Module, names: Collection[str]) -> list[str]:
    """Those of the named layers whose parameters belong to no other module."""
    owners = Counter(id(p) for layer in model.modules() for p in layer.parameters(recurse=False))
    layers = dict(model.named_modules())
    return [name for name in names if all(owners[id(p)] == 1 for p in layers[name].parameters(recurse=False))]


def _is_matrix(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d) and is_plain(layer, nn.Conv2d):
        return layer.groups == 1 and isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"
    return is_plain(layer, nn.Linear)


def _rows(seen: Record) -> tuple[Tensor, Tensor]:
    """Inputs `[B T, in (+ 1)]` and slopes `[B T, out]`."""
    layer: Any = seen.layer
    if isinstance(layer, nn.Conv2d):
        a = unfolded(layer, seen.inputs)[:, 0].transpose(1, 2).flatten(0, 1)
        g = seen.slopes.flatten(2).transpose(1, 2).flatten(0, 1)
    else:
        a, g = seen.inputs.flatten(0, -2), seen.slopes.flatten(0, -2)
    return (a if layer.bias is None else torch.cat([a, a.new_ones(len(a), 1)], 1)), g
