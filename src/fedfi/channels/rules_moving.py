"""Rules of operations that only move, copy or cut elements, or act on each by itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedfi.channels.calls import Call, Result, opaque, positive, rule, values
from fedfi.channels.values import Value, combine, compress, known, labels_of, plain, reshaped


@rule(
    "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout", "contiguous", "clone",
    "to", "_to_copy", "type_as", "detach", "alias", "lift_fresh_copy", "float", "double", "half",
)  # fmt: skip
def unchanged(call: Call) -> Result:
    """The first argument as it is; dropout does nothing in evaluation mode."""
    value = values(list(call.given.values()))[0]
    return Value(call.shape, value.layers, value.name)


@rule(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "swapaxes", "t", "numpy_T",
    "mT", "adjoint", "movedim", "expand", "unsqueeze", "squeeze", "slice", "narrow", "select", "repeat", "tile",
    "flip", "roll", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "chunk", "split",
    "split_with_sizes", "unsafe_split", "unsafe_chunk", "tensor_split", "unbind", "unfold", "diagonal",
    "repeat_interleave", "swapdims",
)  # fmt: skip
def moved(call: Call) -> Result:
    """Labels move as the elements do: the operation itself acts on them."""
    first, *others = call.args
    if not isinstance(first, Value) or values([*others, *call.kwargs.values()]):
        return opaque(call)
    layers = [_apply(call, layer.expand(first.shape), others) for layer in first.layers]
    results = [
        Value(shape, tuple(compress(made[index]) for made in layers), first.name)
        for index, shape in enumerate(call.shapes)
    ]
    return results if call.several else results[0]


def _apply(call: Call, labels: Tensor, others: list[Any]) -> list[Tensor]:
    if call.name in ("view", "_unsafe_view"):  # of labels that are not contiguous, where the tensor was
        labels = labels.reshape(call.shape)
        return [labels]
    made = call.target(labels, *others, **call.kwargs)
    return list(made) if call.several else [made]


@rule("view_as", "reshape_as", "expand_as")
def shaped_like(call: Call) -> Result:
    """As view and expand."""
    value: Value = call.given["self"]
    if call.name == "expand_as":
        return reshaped(value, call.shape, lambda labels: labels.expand(call.shape))
    return reshaped(value, call.shape, lambda labels: labels.reshape(call.shape))


@rule("constant_pad_nd", "pad")
def padded(call: Call) -> Result:
    """New elements belong to no channel, and are all alike; other modes copy elements."""
    value: Value = call.given["self"]
    mode = call.given.get("mode", "constant")
    labels = labels_of(call.ledger, value).expand(value.shape)
    pads = list(call.given["pad"])
    if mode != "constant":
        axes = range(len(value.shape) - len(pads) // 2, len(value.shape))
        if any(compress(labels).shape[axis] > 1 for axis in axes):
            return opaque(call, "pads channels with copies")
        return call.result(compress(labels))
    fill = int(call.ledger.content([1]))
    # Zeros round a map lie along free axes: leaving the label as it is keeps those axes free.
    for index in range(0, len(pads), 2):
        axis = len(value.shape) - 1 - index // 2
        before, after = pads[index], pads[index + 1]
        if compress(labels).shape[axis] == 1 and value.shape[axis] > 1 and bool((labels >= 0).all()):
            length = labels.shape[axis] + before + after
            labels = labels.narrow(axis, 0, 1).expand(*labels.shape[:axis], length, *labels.shape[axis + 1 :])
        else:
            pair = [0] * (2 * (index // 2)) + [before, after]
            labels = torch.constant_pad_nd(labels, pair, fill)
    return call.result(compress(labels))


@rule("cat", "stack", "concat", "concatenate")
def joined(call: Call) -> Result:
    """Labels one after the other; channels of two inputs that lie side by side along a free axis are tied."""
    inputs: list[Value] = values(call.given["tensors"])
    axis = positive(int(call.given["dim"]), len(call.shape))
    labels = [labels_of(call.ledger, value) for value in inputs]
    if call.name == "stack":
        labels = [each.unsqueeze(axis) for each in labels]
        lengths = [1] * len(inputs)
    else:
        kept = [i for i, value in enumerate(inputs) if len(value.shape) == len(call.shape)]
        labels, lengths = [labels[i] for i in kept], [inputs[i].shape[axis] for i in kept]
    sizes = [max(each.shape[other] for each in labels) if other != axis else -1 for other in range(len(call.shape))]
    free = next((each for each in labels if _free(each, axis)), None)
    if free is not None:
        for other in labels:
            call.ledger.tie(other, free)
        if all(bool((each >= 0).all()) for each in labels):
            return call.result(free)
    parts = []
    for each, length in zip(labels, lengths, strict=True):
        wide = [length if other == axis else sizes[other] for other in range(len(sizes))]
        parts.append(each.expand(wide))
    return call.result(compress(torch.cat(parts, axis)))


def _free(labels: Tensor, axis: int) -> bool:
    """Whether labels hold channels along other axes than this one, along which they do not change."""
    others = [length for other, length in enumerate(labels.shape) if other != axis]
    return labels.shape[axis] == 1 and math.prod(others) > 1 and bool((labels >= 0).any())


@rule("hardswish", "type_as", "log_sigmoid", "logsigmoid", "where", "__and__", "__or__", "bitwise_not")
def pointwise(call: Call) -> Result:
    """Elements that meet belong to one channel."""
    labels = [labels_of(call.ledger, value) for value in values(list(call.given.values()))]
    shape = call.shape
    made = combine(call.ledger, labels, call.says("meets content that differs between channels"))
    made = made.reshape((1,) * (len(shape) - made.ndim) + tuple(made.shape))
    return call.result(made)


@rule("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def uniform(call: Call) -> Result:
    """The same content everywhere."""
    return call.result(call.ledger.content([1] * len(call.shape)))


@rule("empty_like", "rand_like", "randn_like", "new_empty", "bernoulli")
def arbitrary(call: Call) -> Result:
    """Content of no channel."""
    return plain(call.ledger, call.shape)


def made_from_nothing(call: Call) -> Result:
    """The result of an operation without tensors, such as arange: known if it can be computed."""
    name = call.name
    if name.startswith(("rand", "empty", "normal")) or len(call.shapes) != 1:
        return opaque(call)
    made: Any = call.target(*call.args, **call.kwargs)
    return known(call.ledger, made) if isinstance(made, Tensor) else opaque(call)
