"""Rules of operations along an axis: norms, pools, sums, softmax, look-ups."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfi.channels.calls import Call, Result, in_blocks, opaque, positive, rule, values, varies
from fedfi.channels.rules_mixing import freeze_axis
from fedfi.channels.values import Value, combine, compress, freeze, labels_of, plain


@rule("batch_norm", "instance_norm", "_native_batch_norm_legit_no_training", "prelu", "_batch_norm_impl_index")
def channelwise(call: Call) -> Result:
    """A number a channel, of each parameter and statistic, on the second axis."""
    labels = labels_of(call.ledger, values(list(call.given.values()))[0])
    for name in ("weight", "bias", "running_mean", "running_var"):
        value: Value | None = call.given.get(name)
        if value is not None:
            nodes = labels_of(call.ledger, value)
            if call.name == "prelu" and nodes.numel() == 1:
                continue  # one slope for all channels
            shape = [1] * len(call.shape)
            shape[1] = -1
            labels = combine(call.ledger, [labels, nodes.reshape(shape)], call.says("has numbers that differ"))
    return call.result(labels)


@rule("layer_norm", "rms_norm", "native_layer_norm")
def layer_norm(call: Call) -> Result:
    """Over the last axes, all their channels alike; weight and bias follow position by position."""
    inputs = call.labels("input")
    over = range(inputs.ndim - len(call.given["normalized_shape"]), inputs.ndim)
    if bool((inputs >= 0).all()) and not varies(inputs, list(over)):
        return call.result(inputs)  # over positions: each channel by itself, all by the same weights
    labels = [inputs]
    labels += [labels_of(call.ledger, call.given[name]) for name in ("weight", "bias") if call.given.get(name)]
    made = combine(call.ledger, labels, call.says("has numbers that differ"))
    # Over [C, H, W] each entry of the weight is tied to its channel; its own label would hide that they are one.
    return call.result(inputs if bool((inputs >= 0).all()) else made)


@rule("group_norm")
def group_norm(call: Call) -> Result:
    """Several groups: the channels of a group are one unit. One group of all is a layer norm."""
    labels = call.labels("input")
    groups = int(call.given["num_groups"])
    shape = [1] * len(call.shape)
    shape[1] = -1
    for name in ("weight", "bias"):
        if call.given.get(name) is not None:
            nodes = labels_of(call.ledger, call.given[name]).reshape(shape)
            labels = combine(call.ledger, [labels, nodes], call.says("has numbers that differ"))
    if in_blocks(call, groups):
        flat = labels.movedim(1, -1).reshape(-1, labels.shape[1])
        blocks = flat.expand(flat.shape[0], call.shape[1]).reshape(flat.shape[0], groups, -1)
        call.ledger.tie(blocks, blocks[..., :1])
        mixed = (blocks < 0).any(-1, keepdim=True).expand(blocks.shape)
        call.ledger.freeze(torch.where(mixed, blocks, -1), call.says("norms channels with other content"))
    return call.result(labels)


@rule(
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "max_pool2d_with_indices", "max_pool1d_with_indices", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d",
    "_upsample_nearest_exact2d", "grid_sampler", "lp_pool2d",
)  # fmt: skip
def pool(call: Call) -> Result:
    """Positions change, channels do not: those are along the first two axes."""
    value = values(list(call.given.values()))[0]
    labels = labels_of(call.ledger, value)
    spatial = int(next(c for c in call.name if c.isdigit())) if any(c.isdigit() for c in call.name) else 2
    axes = list(range(len(value.shape) - spatial, len(value.shape)))
    if bool((labels >= 0).any()) and varies(labels, axes):
        return opaque(call, "pools channels")
    return _along(call, labels, axes)


def _along(call: Call, labels: Tensor, axes: list[int]) -> Result:
    """Results in which content along these axes is new; labels of channels do not change along them."""
    results = []
    for shape in call.shapes:
        if bool((labels >= 0).all()):
            results.append(Value(shape, (labels,)))
        elif bool((labels < 0).all()):
            wide = [shape[axis] if axis in axes else labels.shape[axis] for axis in range(len(shape))]
            results.append(Value(shape, (compress(call.ledger.content(wide)),)))
        else:
            results.append(Value(shape, (labels,)))
    return list(results) if call.several else results[0]


@rule(
    "mean", "sum", "amax", "amin", "max", "min", "std", "var", "var_mean", "std_mean", "logsumexp", "prod", "any",
    "all", "argmax", "argmin", "norm", "linalg_vector_norm", "median", "count_nonzero",
)  # fmt: skip
def reduction(call: Call) -> Result:
    """Over free axes channels stay; over an axis of channels they are frozen."""
    value = values(list(call.given.values()))[0]
    if len(values(list(call.given.values()))) > 1:  # the elementwise maximum of two
        return opaque(call) if not call.name.startswith(("max", "min")) else _maximum(call)
    given = call.given.get("dim", "missing")
    count = len(value.shape)
    axes = list(range(count)) if given in (None, "missing", []) else given if isinstance(given, list) else [given]
    axes = [positive(int(axis), count) for axis in axes]
    labels = labels_of(call.ledger, value)
    if varies(labels, axes):
        if bool((labels >= 0).any()):
            return opaque(call, "reduces over channels")
        labels = call.ledger.content([1 if axis in axes else length for axis, length in enumerate(labels.shape)])
    kept = bool(call.shapes) and len(call.shape) == count
    labels = labels if kept else labels.reshape([n for axis, n in enumerate(labels.shape) if axis not in axes])
    results = [Value(shape, (labels,)) for shape in call.shapes]
    return list(results) if call.several else results[0]


def _maximum(call: Call) -> Result:
    labels = [labels_of(call.ledger, value) for value in values(list(call.given.values()))]
    return call.result(combine(call.ledger, labels, call.says("meets content that differs")))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "sort", "topk", "_safe_softmax")
def along_axis(call: Call) -> Result:
    """Along a free axis channels stay; along an axis of channels they are frozen."""
    value = values(list(call.given.values()))[0]
    axis = positive(int(call.given["dim"]), len(value.shape))
    labels = labels_of(call.ledger, value)
    if varies(labels, [axis]) and bool((labels >= 0).any()):
        return opaque(call, "acts along channels")
    return _along(call, labels, [axis])


@rule("glu")
def glu(call: Call) -> Result:
    """The first half times a gate of the second."""
    value: Value = call.given["self"]
    axis = positive(int(call.given["dim"]), len(value.shape))
    labels = call.labels("self")
    halves = labels.expand(*labels.shape[:axis], value.shape[axis], *labels.shape[axis + 1 :]).chunk(2, axis)
    return call.result(combine(call.ledger, list(halves), call.says("meets content that differs")))


@rule("index_select", "gather", "index")
def lookup(call: Call) -> Result:
    """By index along free axes; rows of a parameter as in an embedding."""
    value: Value = call.given["self"]
    if call.name == "index":
        axes = [axis for axis, each in enumerate(call.given["indices"]) if each is not None]
        together = axes == list(range(axes[0], axes[-1] + 1)) if axes else False
        indices = [each for each in call.given["indices"] if each is not None]
        wide = max((len(each.shape) for each in indices), default=0)
    else:
        axes, together, wide = [positive(int(call.given["dim"]), len(value.shape))], True, 1
    if any(bool((layer >= 0).any()) for each in values(call.given.get("indices")) for layer in each.layers):
        return opaque(call)
    if value.name is not None and axes == [0] and len(value.shape) == 2 and call.name == "index":
        freeze_axis(call.ledger, value.name, 0, call.says("looks it up by index"))
        call.ledger.claim(value.name, 1, "along")
        nodes = value.layers[1].reshape(-1)
        call.ledger.emit(nodes)
        return call.result(nodes.reshape((1,) * (len(call.shape) - 1) + (-1,)))
    labels = labels_of(call.ledger, value)
    if not bool((labels >= 0).any()):
        return plain(call.ledger, call.shape)
    if not together or varies(labels, axes):
        return opaque(call, "looks channels up by index")
    if call.name == "gather":
        return call.result(labels)
    shape = [*labels.shape[: axes[0]], *([1] * wide), *labels.shape[axes[-1] + 1 :]]
    return call.result(labels.reshape(shape))


@rule("tril", "triu")
def triangle(call: Call) -> Result:
    """Zeros in the last two axes, where channels must not be."""
    labels = call.labels("self")
    count = len(call.shape)
    if varies(labels, [count - 2, count - 1]):
        freeze(call.ledger, call.given["self"], call.says("cuts channels"))
    return plain(call.ledger, call.shape) if bool((labels < 0).any()) else call.result(labels)
