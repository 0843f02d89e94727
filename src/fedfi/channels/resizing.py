"""Sizes that modules keep beside their tensors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fedfi.channels.attention import fitted
from fedfi.channels.slicing import Group

_NO_CHANNELS = (
    "image", "img", "patch", "kernel", "window", "stride", "padding", "seq", "length", "position", "max", "vocab",
    "class", "label", "layer", "depth", "chunk", "idx", "index", "token", "batch",
)  # fmt: skip


def resize(module: nn.Module) -> None:
    """Sets what a module of torch keeps, by the shapes of its tensors."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.Bilinear):
        module.out_features, module.in1_features, module.in2_features = weight.shape
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.num_embeddings, module.embedding_dim = weight.shape
    elif isinstance(module, _ConvNd):
        _resize_convolution(module)
    elif isinstance(module, _NormBase):
        known = next((each for each in (weight, module.running_mean) if each is not None), None)
        if known is not None:
            module.num_features = len(known)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(weight)


def resize_norm(module: nn.Module, axis: int, length: int) -> None:
    """Sets the number of channels of a layer or group norm.

    Args:
        module: The norm; anything else is left alone.
        axis: Which of its normalised axes.
        length: The new length.
    """
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        shape = list(module.normalized_shape)
        shape[axis] = length
        module.normalized_shape = tuple(shape)
    elif isinstance(module, nn.GroupNorm):
        if module.num_groups > 1:  # groups stay whole
            module.num_groups = length * module.num_groups // module.num_channels
        module.num_channels = length


def replace_attention(module: nn.Module) -> nn.Module:
    """Gives every `nn.MultiheadAttention` in a module its sizes, or puts another in its place."""
    if isinstance(module, nn.MultiheadAttention):
        return fitted(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(parent, name, fitted(child))
    return module


def resize_others(
    module: nn.Module, groups: tuple[Group, ...], counts: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Sets whole-number attributes of modules that are not torch's, where they equal a size that has changed.

    An attribute whose name speaks of heads, but not of their size, is compared with the number of units of the
    groups below the module; any other with the length of the axes below it. The commonest new size is taken.

    Args:
        module: A module with smaller tensors.
        groups: The groups.
        counts: How many units of each are kept.
        shapes: The full shape of each tensor.
    """
    small = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for path, each in module.named_modules():
        numbers = {k: v for k, v in vars(each).items() if type(v) is int and v > 1 and not _other(k)}
        if not numbers or type(each).__module__.startswith("torch.nn."):
            continue
        prefix = f"{path}." if path else ""
        lengths: dict[int, Counter[int]] = defaultdict(Counter)
        for name, tensor in small.items():
            if name.startswith(prefix) and name in shapes:
                for old, new in zip(shapes[name], tensor.shape, strict=True):
                    lengths[old][new] += 1
        heads: dict[int, Counter[int]] = defaultdict(Counter)
        for group in groups:
            below = any(member.name.startswith(prefix) for member in group.members)
            if below and any(member.positions.shape[1] > 1 for member in group.members):
                heads[group.units][counts[group.name]] += 1
        for key, value in numbers.items():
            counted = "head" in key and not any(word in key for word in ("dim", "size"))
            sizes = heads if counted else lengths
            if value in sizes:
                setattr(each, key, sizes[value].most_common(1)[0][0])


def _other(name: str) -> bool:
    """Whether an attribute's name says that it counts no channels."""
    return name.startswith("_") or any(word in name.lower() for word in _NO_CHANNELS)


def _resize_convolution(module: _ConvNd) -> None:
    first, second = module.weight.shape[:2]
    block_in, block_out = module.in_channels // module.groups, module.out_channels // module.groups
    transposed = isinstance(module, _ConvTransposeNd)
    if module.groups > 1:  # blocks stay whole
        module.groups = first // (block_in if transposed else block_out)
        module.in_channels, module.out_channels = module.groups * block_in, module.groups * block_out
    elif transposed:
        module.in_channels, module.out_channels = first, second
    else:
        module.out_channels, module.in_channels = first, second
