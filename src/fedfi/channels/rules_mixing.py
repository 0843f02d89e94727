"""Rules of operations that make new channels of old ones: linear maps, convolutions, embeddings, attention."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfi.channels.calls import Call, Result, in_blocks, opaque, rule, values
from fedfi.channels.ledger import Ledger
from fedfi.channels.values import Value, combine, compress, freeze, labels_of, parameter

_INPUT = "reads the module's input or other content of no channel"


@rule("linear")
def linear(call: Call) -> Result:
    """``input @ weight.T + bias``."""
    weight: Value = call.given["weight"]
    turned = Value(weight.shape[::-1], tuple(layer.t() for layer in weight.layers), weight.name)
    return _with_bias(call, _product(call, call.given["input"], turned), call.given["bias"])


@rule("matmul", "mm", "bmm")
def matmul(call: Call) -> Result:
    """``self @ other``, one of which may be a parameter."""
    other: Value = call.given["other" if "other" in call.given else "mat2"]
    return call.result(_product(call, call.given["self"], other))


@rule("addmm", "baddbmm")
def addmm(call: Call) -> Result:
    """``self + left @ right``."""
    left, right = (values(each)[0] for name, each in call.given.items() if name[:-1] in ("mat", "batch"))
    return _with_bias(call, _product(call, left, right), call.given["self"])


def _product(call: Call, left: Value, right: Value) -> Tensor:
    if len(right.shape) == 2 and right.name is not None and left.name is None and len(left.shape) >= 1:
        return _linear_map(call, left, right)
    if len(left.shape) < 2 or len(right.shape) < 2:
        opaque(call, "multiplies vectors")
        return call.ledger.content(call.shape)
    return contract(call, labels_of(call.ledger, left), labels_of(call.ledger, right), left.shape[-1])


def _linear_map(call: Call, inputs: Value, weight: Value) -> Tensor:
    """A parameter ``[in, out]`` on the last axis of the inputs."""
    ledger, name = call.ledger, weight.name
    if name is None or len(weight.layers) != 2:
        freeze(ledger, inputs, call.says("has a weight that is not understood"))
        freeze(ledger, weight, call.says("has a weight that is not understood"))
        return ledger.content(call.shape)
    # The layer of the axis that is contracted changes along the first axis of `weight`, if at all.
    backwards = weight.layers[0].shape[0] > 1 or weight.layers[1].shape[1] > 1
    entering, leaving = (0, 1) if backwards else (1, 0)
    if weight.shape == (1, 1):
        entering, leaving = 1, 0
    read = weight.layers[entering].reshape(-1)
    made = weight.layers[leaving].reshape(-1)
    labels = inputs.layers[0]
    ahead = (1,) * (len(inputs.shape) - 1)
    if labels.shape[-1] == 1 and inputs.shape[-1] > 1 and labels.numel() > 1 and bool((labels >= 0).any()):
        freeze(ledger, weight, call.says("mixes an axis that is not the channels'"))
        return labels
    enter(call, name, entering, read, labels)
    ledger.claim(name, leaving, "out")
    ledger.emit(made)
    return made.reshape(*ahead, -1) if ahead else made


def enter(call: Call, name: str, axis: int, nodes: Tensor, labels: Tensor) -> None:
    """An axis of a weight, ``[in]``, reads channels, ``[..., in]``."""
    call.ledger.claim(name, axis, "in")
    call.ledger.tie(nodes, labels)
    foreign = (labels < 0).reshape(-1, labels.shape[-1]).any(0).expand(nodes.shape)
    call.ledger.freeze(torch.where(foreign, nodes, -1), call.says(_INPUT))


def _with_bias(call: Call, labels: Tensor, bias: Value | None) -> Value:
    if bias is None:
        return call.result(labels)
    if labels.numel() > 1 and labels.shape[-1] == 1 and call.shape[-1] > 1 and bias.name is not None:
        freeze(call.ledger, bias, call.says("mixes an axis that is not the channels'"))
        return call.result(labels)
    if bias.name is not None and len(bias.shape) == 1:
        call.ledger.claim(bias.name, 0, "out")
    made = combine(call.ledger, [labels, labels_of(call.ledger, bias)], call.says("adds content that differs"))
    return call.result(made)


def contract(call: Call, left: Tensor, right: Tensor, length: int) -> Tensor:
    """Labels of ``left @ right``, two activations ``[..., m, k]`` and ``[..., k, n]`` with k = `length`.

    Channels that are summed over move together, and with those they meet; what comes out belongs to all of them.
    """
    ledger = call.ledger
    reason = call.says("multiplies channels with content that differs between them")
    if left.shape[-1] == 1 and right.shape[-2] == 1:  # k is no axis of channels
        return combine(ledger, [left, right], reason)
    rows = left.unsqueeze(-2)  # [..., m, 1, k]
    columns = right.transpose(-1, -2).unsqueeze(-3)  # [..., 1, n, k]
    wide = max(rows.shape[-1], columns.shape[-1])
    rows, columns = rows.expand(*rows.shape[:-1], wide), columns.expand(*columns.shape[:-1], wide)
    if left.shape[-1] != right.shape[-2] or bool((rows < 0).any()) or bool((columns < 0).any()):
        ledger.freeze(left, call.says("sums over channels"))
        ledger.freeze(right, call.says("sums over channels"))
        shape = torch.broadcast_shapes(rows.shape, columns.shape)[:-1]
        return ledger.content(shape)
    ledger.tie(rows, columns)
    ledger.tie(rows, rows[..., :1])
    return combine(ledger, [rows[..., 0], columns[..., 0]], reason)


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Result:
    """Softmax of ``query @ key.T``, plus a mask, ``@ value``: a head is one unit."""
    query, key, value = (call.given[name] for name in ("query", "key", "value"))
    asked, known, taken = (labels_of(call.ledger, each) for each in (query, key, value))
    if query.shape[-3] != key.shape[-3] and call.given.get("enable_gqa"):
        times = query.shape[-3] // key.shape[-3]
        known, taken = (
            each.expand(*each.shape[:-3], source.shape[-3], *each.shape[-2:]).repeat_interleave(times, -3)
            for each, source in ((known, key), (taken, value))
        )
    if asked.shape[-2] > 1 or known.shape[-2] > 1 or taken.shape[-2] > 1:
        return opaque(call, "has channels along its tokens")
    scores = contract(call, asked, known.transpose(-1, -2), query.shape[-1])
    if call.given.get("attn_mask") is not None:
        mask = call.labels("attn_mask")
        scores = combine(call.ledger, [scores, mask], call.says("has a mask that differs between heads"))
    if scores.shape[-1] > 1 and bool((scores >= 0).any()):
        return opaque(call, "has channels along its tokens")
    return call.result(contract(call, scores[..., :1], taken, 1))


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(call: Call) -> Result:
    """Convolutions; blocks of channels of a grouped one are units."""
    inputs: Value = call.given["input"]
    weight: Value = call.given["weight"]
    transposed = "transpose" in call.name or bool(call.given.get("transposed"))
    groups = int(call.given["groups"])
    spatial = len(weight.shape) - 2
    labels = labels_of(call.ledger, inputs)
    channel = len(inputs.shape) - spatial - 1
    if weight.name is None or weight.shape != call.ledger.shapes[weight.name]:
        return opaque(call, "has a weight that is not a parameter as it stands")
    if labels.shape[channel] == 1 and inputs.shape[channel] > 1 and labels.numel() > 1 and bool((labels >= 0).any()):
        return opaque(call, "mixes an axis that is not the channels'")
    if any(length > 1 for length in labels.shape[channel + 1 :]) and bool((labels >= 0).any()):
        return opaque(call, "has channels along its positions")
    ledger, name = call.ledger, weight.name
    first, second = ledger.axis(name, 0), ledger.axis(name, 1)
    flat = labels.movedim(channel, -1)
    flat = flat.reshape(-1, flat.shape[-1])
    shape = [1] * len(call.shape)
    shape[channel] = -1
    count = call.shape[channel]
    if not in_blocks(call, groups):
        entering, leaving = (0, 1) if transposed else (1, 0)
        enter(call, name, entering, (first, second)[entering], flat)
        ledger.claim(name, leaving, "out")
        made = (first, second)[leaving]
        ledger.emit(made)
    else:
        made = _grouped(call, name, first, flat.expand(flat.shape[0], inputs.shape[channel]), groups, transposed, count)
    bias: Value | None = call.given["bias"]
    if bias is not None:
        if bias.name is not None:
            ledger.claim(bias.name, 0, "out")
        made = combine(ledger, [made, labels_of(ledger, bias)], call.says("adds content that differs"))
    return call.result(compress(made.reshape(shape)))


def _grouped(call: Call, name: str, first: Tensor, labels: Tensor, groups: int, transposed: bool, count: int) -> Tensor:
    """Ties each block of inputs ``[rows, in]`` to its block of outputs; the weight's second axis stays whole."""
    ledger = call.ledger
    blocks = labels.reshape(labels.shape[0], groups, -1)
    mine = first.reshape(groups, -1)
    ledger.tie(blocks, blocks[:1, :, :1])
    ledger.tie(mine, mine[:, :1])
    ledger.tie(mine[:, :1], blocks[0, :, :1])
    foreign = (blocks < 0).any(0).any(-1, keepdim=True).expand(mine.shape)
    ledger.freeze(torch.where(foreign, mine, -1), call.says(_INPUT))
    ledger.claim(name, 0, "in" if transposed else "out")
    ledger.emit(first)
    if not transposed:
        return first
    return mine[:, :1].expand(groups, count // groups).reshape(-1)


@rule("embedding")
def embedding(call: Call) -> Result:
    """Rows by index; the axis of rows is frozen."""
    weight: Value = call.given["weight"]
    if weight.name is None or len(weight.layers) != 2 or weight.layers[0].shape[1] > 1:
        return opaque(call)
    freeze_axis(call.ledger, weight.name, 0, call.says("looks it up by index"))
    call.ledger.claim(weight.name, 1, "out")
    nodes = weight.layers[1].reshape(-1)
    call.ledger.emit(nodes)
    return call.result(nodes.reshape((1,) * (len(call.shape) - 1) + (-1,)))


def freeze_axis(ledger: Ledger, name: str, axis: int, reason: str) -> None:
    """Keeps one axis of a parameter whole."""
    ledger.freeze(parameter(ledger, name).layers[axis], reason)
