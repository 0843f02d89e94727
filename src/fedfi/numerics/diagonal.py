"""The empirical Fisher diagonal in closed form, one forward and one partial backward pass a batch.

Shape convention: B examples a batch; results have the shapes of the parameters.

For a linear layer the gradient of example b is the outer product of slope g_b and input x_b, so the sum of its squares
is (g^2)^T x^2; a layer that is applied at T positions has a sum over positions inside the square, which one batched
product gives. Convolutions are linear layers on unfolded inputs. Norms and embeddings have sums of their own. Layers of
any other kind, called twice, or with tied parameters are left to per-example gradients (`gradients.example_sums`);
the result is the same, and no parameter is passed over.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedfi.numerics.fisher import usual_chunk
from fedfi.numerics.gradients import (
    Loss,
    Named,
    exact_squares,
    example_sums,
    require_separable,
    selected_parameters,
    wide,
)
from fedfi.numerics.tape import Record, record, record_labels, used_once

__all__ = ["closed_layers", "empirical_fisher", "exact_fisher", "unfolded"]

_PATCHES = 1 << 19
"""Entries of patches that are made at once: what stays near a core until it is multiplied."""

_BLOCK = 1 << 16
"""Entries of one example's gradient that are computed at once, so that they are squared in the core's own cache."""


def empirical_fisher(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], loss: Loss) -> Named:
    """The mean over examples of squared gradients of their losses, for every parameter that requires gradients.

    Equal to `fisher.diagonal_fisher(..., kind="example")` up to rounding, at about the cost of training.

    Args:
        model: Left as found; it runs in the mode it is in, and must not mix examples in it.
        batches: Pairs of inputs `[B, ...]` and targets `[B, ...]`, on the model's device.
        loss: Outputs and targets to the unreduced losses `[B]`.

    Returns:
        The estimate per parameter name, at least float32.

    Raises:
        ValueError: For no batches, a loss that is not one value an example, or a layer that mixes examples.
    """
    return _mean_squares(
        model,
        batches,
        lambda x, y, names: iter([record(model, x, y, loss, names)]),
        lambda rest, x, y: example_sums(model, rest, x, y, loss, usual_chunk(model))[1],
    )


def exact_fisher(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Named:
    """The mean over examples of sum_y p(y|x) times squared gradients of log p(y|x): labels from the model.

    Equal to `fisher.diagonal_fisher(..., kind="exact")` up to rounding; one partial backward pass a class.

    Args:
        model: As for `empirical_fisher`; it returns logits `[B, C]`.
        batches: Pairs of inputs `[B, ...]` and targets, which are not used.

    Raises:
        ValueError: As `empirical_fisher`, or for outputs that are not `[B, C]`.
    """
    return _mean_squares(
        model,
        batches,
        lambda x, _, names: record_labels(model, x, names),
        lambda rest, x, _: exact_squares(model, rest, x, usual_chunk(model)),
    )


def _mean_squares(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    passes: Callable[[Tensor, Tensor, set[str]], Iterator[list[Record]]],
    others: Callable[[Named, Tensor, Tensor], Named],
) -> Named:
    """Squares summed over the passes of each batch, in closed form where there is one; means over examples."""
    require_separable(model)
    parameters = selected_parameters(model, None)
    sums = {name: torch.zeros_like(value, dtype=wide(value)) for name, value in parameters.items()}
    closed: set[str] | None = None
    count = 0
    for inputs, targets in batches:
        if closed is None:
            closed = used_once(model, inputs[:1], closed_layers(model))
            covered = {_join(layer, own) for layer in closed for own in _own(model, layer)}
            rest = {name: value for name, value in parameters.items() if name not in covered}
        for records in passes(inputs, targets, closed) if closed else ():
            for seen in records:
                for own, squares in _SQUARES[_kind(seen.layer)](seen).items():
                    name = _join(seen.name, own)
                    if name in sums:
                        sums[name] += squares
        if rest:
            for name, value in others(rest, inputs, targets).items():
                sums[name] += value
        count += len(inputs)
    if not count:
        raise ValueError("no batches were given; expected at least one")
    return {name: value / count for name, value in sums.items()}


def closed_layers(model: nn.Module) -> list[str]:
    """Names of the layers that have a closed form here and share no parameter with another."""
    owners: dict[int, int] = {}
    layers = dict(model.named_modules())
    for layer in layers.values():
        for parameter in layer.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return [
        name
        for name, layer in layers.items()
        if _kind(layer) in _SQUARES and all(owners[id(p)] == 1 for p in layer.parameters(recurse=False))
    ]


def unfolded(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """The patches `[B, groups, D, T]` that a convolution multiplies with its weights `[groups, out, D]`."""
    assert not isinstance(layer.padding, str)  # see `_kind`, and `kfac.matrix_layers`
    (down, right), (high, wide), (by, over) = layer.padding, layer.kernel_size, layer.dilation
    padded = functional.pad(inputs, (right, right, down, down)) if down or right else inputs.contiguous()
    count, channels, height, breadth = padded.shape
    rows = (height - by * (high - 1) - 1) // layer.stride[0] + 1
    columns = (breadth - over * (wide - 1) - 1) // layer.stride[1] + 1
    example, channel, row, column = padded.stride()
    # as `functional.unfold`, by one copy of a view, several times faster
    patches = padded.as_strided(
        (count, channels, high, wide, rows, columns),
        (example, channel, row * by, column * over, row * layer.stride[0], column * layer.stride[1]),
    )
    return patches.reshape(count, layer.groups, -1, rows * columns)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer computes what `kind` does: it, or a subclass that does not change the forward pass."""
    return isinstance(layer, kind) and type(layer).forward is kind.forward


def _kind(layer: nn.Module) -> Any:
    if isinstance(layer, _BatchNorm):
        return _BatchNorm if layer.affine else None
    kind = next((k for k in _SQUARES if k is not _BatchNorm and is_plain(layer, k)), None)
    if isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or layer.padding_mode != "zeros"):
        return None
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return None
    affine = getattr(layer, "affine", getattr(layer, "elementwise_affine", True))
    return kind if affine else None


def _own(model: nn.Module, layer: str) -> list[str]:
    return [name for name, _ in model.get_submodule(layer).named_parameters(recurse=False)]


def _join(layer: str, own: str) -> str:
    return f"{layer}.{own}" if layer else own


def _products(slopes: Tensor, inputs: Tensor) -> Tensor:
    """The sum over b of squares of slopes[b] `[G, o, T]` times inputs[b] `[G, D, T]` transposed: `[G, o, D]`."""
    groups, outputs, _ = slopes.shape[1:]
    width = inputs.shape[2]
    total = slopes.new_zeros(groups, outputs, width)
    if groups * outputs * width <= _BLOCK // 4:  # many examples at once
        step = max(1, _BLOCK * 4 // (groups * outputs * width))
        for g, x in zip(slopes.split(step), inputs.split(step), strict=True):
            products = torch.bmm(g.flatten(0, 1), x.flatten(0, 1).transpose(1, 2)).square_()
            total += products.view(len(g), groups, outputs, width).sum(0)
        return total
    rows = max(1, min(outputs, _BLOCK // (groups * width)))
    buffer = slopes.new_empty(groups, rows, width)
    for start in range(0, outputs, rows):
        part = total[:, start : start + rows]
        held = buffer[:, : part.shape[1]]
        for g, x in zip(slopes[:, :, start : start + rows], inputs, strict=True):
            for own, left, right in zip(held, g, x, strict=True):
                torch.mm(left, right.T, out=own)
            part.addcmul_(held, held)
    return total


def _linear(seen: Record) -> Named:
    x, g = seen.inputs, seen.slopes
    if x.ndim == 2:
        found = {"weight": g.square().T @ x.square(), "bias": g.square().sum(0)}
    else:
        x, g = x.flatten(1, -2), g.flatten(1, -2)
        found = {"weight": _products(g.mT[:, None], x.mT[:, None])[0], "bias": g.sum(1).square().sum(0)}
    return found


def _convolution(seen: Record) -> Named:
    layer: Any = seen.layer
    g = seen.slopes.flatten(2)
    # patches are many times the inputs, so they are made for a few examples at a time
    step = max(1, _PATCHES // (seen.inputs.shape[1] * layer.weight[0, 0].numel() * g.shape[2]))
    squares = torch.zeros_like(layer.weight).unflatten(0, (layer.groups, -1)).flatten(2)
    for x, slopes in zip(seen.inputs.split(step), g.split(step), strict=True):
        squares += _products(slopes.unflatten(1, (layer.groups, -1)), unfolded(layer, x))
    found = {"weight": squares.reshape(layer.weight.shape)}
    return found if layer.bias is None else found | {"bias": g.sum(2).square().sum(0)}


def _affine(seen: Record, normal: Tensor, channel: int) -> Named:
    """Squares of a norm's weight and bias; channels lie on axis `channel`, other axes but the first are positions."""
    kept = (0, channel % normal.ndim)
    around = [axis for axis in range(normal.ndim) if axis not in kept]
    weight, bias = normal * seen.slopes, seen.slopes
    if around:
        weight, bias = weight.sum(around), bias.sum(around)
    return {"weight": weight.square().sum(0), "bias": bias.square().sum(0)}


def _batch_norm(seen: Record) -> Named:
    layer: Any = seen.layer
    normal = functional.batch_norm(seen.inputs, layer.running_mean, layer.running_var, eps=layer.eps)
    return _affine(seen, normal, 1)


def _group_norm(seen: Record) -> Named:
    layer: Any = seen.layer
    return _affine(seen, functional.group_norm(seen.inputs, layer.num_groups, eps=layer.eps), 1)


def _layer_norm(seen: Record) -> Named:
    layer: Any = seen.layer
    normal = functional.layer_norm(seen.inputs, layer.normalized_shape, eps=layer.eps)
    shape = layer.normalized_shape
    flat = Record(seen.name, seen.layer, seen.inputs, seen.slopes.flatten(-len(shape)))
    return {name: value.view(shape) for name, value in _affine(flat, normal.flatten(-len(shape)), -1).items()}


def _embedding(seen: Record) -> Named:
    """Tokens of one kind in one example add up before they are squared."""
    layer: Any = seen.layer
    tokens, slopes = seen.inputs.flatten(1), seen.slopes.flatten(1, -2)
    count = layer.num_embeddings
    keys, places = (tokens + count * torch.arange(len(tokens), device=tokens.device)[:, None]).unique(
        return_inverse=True
    )
    summed = slopes.new_zeros(len(keys), slopes.shape[-1]).index_add_(0, places.flatten(), slopes.flatten(0, 1))
    squares = slopes.new_zeros(count, slopes.shape[-1]).index_add_(0, keys % count, summed.square())
    if layer.padding_idx is not None:
        squares[layer.padding_idx] = 0
    return {"weight": squares}


_SQUARES: dict[Any, Callable[[Record], Named]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    _BatchNorm: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
