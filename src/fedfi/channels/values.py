"""What the rules know of a tensor in the graph.

A value's *labels* have its shape, with length 1 along axes where they do not change: the node of the channel that
an element belongs to, or a negative number where it belongs to none. Along an axis of length 1 elements of a
channel may differ (batch, space, tokens), but content of no channel is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfi.channels.ledger import Ledger


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    Args:
        shape: Its shape.
        layers: Its labels; for a parameter's view, the nodes of each of the parameter's axes instead.
        name: The parameter or buffer that it is a view of.
    """

    shape: tuple[int, ...]
    layers: tuple[Tensor, ...]
    name: str | None = None


def parameter(ledger: Ledger, name: str) -> Value:
    """A parameter or buffer, before anything is done to it."""
    shape = ledger.shapes[name]
    layers = []
    for axis in range(len(shape)):
        view = [1] * len(shape)
        view[axis] = -1
        layers.append(ledger.axis(name, axis).reshape(view))
    return Value(shape, tuple(layers), name)


def plain(ledger: Ledger, shape: Sequence[int]) -> Value:
    """Content of no channel that may differ everywhere."""
    return Value(tuple(shape), (ledger.content(shape),))


def known(ledger: Ledger, tensor: Tensor) -> Value:
    """Content of no channel whose numbers are known: equal ones are the same content."""
    flat, inverse = torch.unique(tensor.detach().cpu(), return_inverse=True)
    return Value(tuple(tensor.shape), (compress(ledger.content((max(1, flat.numel()),))[inverse]),))


def compress(labels: Tensor) -> Tensor:
    """The same labels with length 1 along axes where they do not change."""
    for axis in range(labels.ndim):
        if labels.shape[axis] > 1 and labels.stride(axis) == 0:
            labels = labels.narrow(axis, 0, 1)
    for axis in range(labels.ndim):
        if labels.shape[axis] > 1 and bool((labels == labels.narrow(axis, 0, 1)).all()):
            labels = labels.narrow(axis, 0, 1)
    return labels


def labels_of(ledger: Ledger, value: Value) -> Tensor:
    """A value's labels; a parameter's are its only long axis, or else each of its elements by itself."""
    if value.name is None:
        return value.layers[0]
    shape = ledger.shapes[value.name]
    long = [axis for axis, length in enumerate(shape) if length > 1] or list(range(len(shape)))[:1]
    if not long:
        return ledger.content([1] * len(value.shape))
    if len(long) == 1:
        ledger.claim(value.name, long[0], "along")
        return value.layers[long[0]]
    start = ledger.element_start(value.name)
    if start is None:
        freeze(ledger, value, f"{value.name} is too large to be followed element by element")
        return ledger.content(value.shape)
    flat = torch.zeros((), dtype=torch.long)
    for axis, layer in enumerate(value.layers):
        flat = flat * shape[axis] + (layer - ledger.starts[value.name, axis])
    return compress(flat + start)


def freeze(ledger: Ledger, value: Value, reason: str) -> None:
    """Keeps all channels of a value, always; of a parameter's view, all positions of all its axes."""
    for layer in value.layers:
        ledger.freeze(layer, reason)


def reshaped(value: Value, shape: Sequence[int], operation: Callable[[Tensor], Tensor]) -> Value:
    """What an operation that only moves elements makes of a value."""
    layers = tuple(compress(operation(layer.expand(value.shape))) for layer in value.layers)
    return Value(tuple(shape), layers, value.name)


def combine(ledger: Ledger, labels: Sequence[Tensor], reason: str) -> Tensor:
    """The labels of an elementwise operation: channels that meet are tied.

    A channel may meet content of no channel only where that is the same for all channels.
    """
    result = labels[0]
    for other in labels[1:]:
        result = _meet(ledger, result, other, reason)
    return result


def _meet(ledger: Ledger, left: Tensor, right: Tensor, reason: str) -> Tensor:
    if right.numel() > left.numel():  # what changes more says more: a head's label must not hide its channels
        left, right = right, left
    count = max(left.ndim, right.ndim)
    left = left.reshape((1,) * (count - left.ndim) + tuple(left.shape))
    right = right.reshape((1,) * (count - right.ndim) + tuple(right.shape))
    ledger.tie(left, right)
    _uneven(ledger, left, right, reason)
    _uneven(ledger, right, left, reason)
    both = torch.broadcast_shapes(left.shape, right.shape)
    nothing = (left < 0) & (right < 0)
    result = torch.where(left >= 0, left, right)
    if bool(nothing.any()):
        result = torch.where(nothing, ledger.content(both), result)
    return compress(result)


def _uneven(ledger: Ledger, channels: Tensor, content: Tensor, reason: str) -> None:
    """Freezes channels that meet content of no channel which differs from one channel to the next."""
    shared = [a for a in range(channels.ndim) if channels.shape[a] > 1 and content.shape[a] > 1]
    meeting = (channels >= 0) & (content < 0)
    if not shared or not bool(meeting.any()):
        return
    channels, content = torch.broadcast_tensors(channels, content)
    if torch.unique(content[meeting]).numel() > 1:
        ledger.freeze(channels[meeting], reason)
