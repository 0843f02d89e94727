"""Normalisation layers by name, and the statistics of batch normalisation that keeps none while training.

`static` is HeteroFL's (Diao, Ding, Tarokh, ICLR 2021): batch statistics and no running ones in training, so
that clients have no statistics to share or average; one pass over data afterwards gives those that evaluation
uses.

Shape convention: layers map `[batch, channels, height, width]` to the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedfi.errors import InputError, unknown

Norm = Literal["batch", "group", "static", "none"]


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """A normalisation layer for images.

    Args:
        norm: ``"batch"`` with running statistics; ``"static"`` without; ``"group"``; or ``"none"``.
        channels: Number of channels.

    Raises:
        InputError: If there is no such layer.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "static":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    if norm == "group":
        return nn.GroupNorm(group_count(channels), channels)
    if norm == "none":
        return nn.Identity()
    raise InputError(unknown("norm", norm, ("batch", "group", "static", "none")))


def group_count(channels: int) -> int:
    """Number of groups: the largest divisor up to 32 that leaves two channels or more a group.

    32 is the number of Wu and He (Group Normalization, ECCV 2018). A group of one channel would be instance
    normalisation, which turns a map of 1 x 1 into zeros. A prime number of channels makes one group of all.

    Args:
        channels: Number of channels, at least 1.
    """
    return max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or channels // g >= 2))


def recompute_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Gives static batch norms the statistics of one pass over data; evaluation mode uses them from then on.

    Each statistic is the plain mean over batches of the batch's mean, or of its unbiased variance, while
    every static norm before it normalises by the batch as in training; other modules run as in evaluation. In
    training mode they go on using batch statistics. The statistics become buffers ``running_mean`` and
    ``running_var`` ``[channels]``, part of the state dict. A model without static norms is left as it is.
    Call it again to renew them.

    Args:
        model: The model; its modules keep their modes.
        batches: Inputs ``[batch, ...]``, read once; batches of one size weigh the examples equally.

    Raises:
        InputError: If there are no batches; the statistics stay as they were, as for any other error.
    """
    layers = _static_norms(model)
    if not layers:
        return
    modes = {module: module.training for module in model.modules()}
    before = [(layer.running_mean, layer.running_var) for layer in layers]
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.track_running_stats = True
        layer.momentum = None  # a cumulative mean
        layer.running_mean = torch.zeros(layer.num_features, device=_device(layer))
        layer.running_var = torch.ones(layer.num_features, device=_device(layer))
        layer.num_batches_tracked = torch.zeros((), dtype=torch.long)
    done = False
    try:
        with torch.no_grad():
            for inputs in batches:
                model(inputs)
                done = True
        if not done:
            raise InputError("statistics need at least one batch, got none")
    except BaseException:
        for layer, (mean, variance) in zip(layers, before, strict=True):
            layer.running_mean, layer.running_var = mean, variance
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.track_running_stats = False
            layer.momentum = momentum
            layer.num_batches_tracked = None
        for module, mode in modes.items():
            module.training = mode


def renew_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Measures the running statistics of batch norms anew, by one pass over data; `running_norms` says of which.

    Each becomes the plain mean over batches of the batch's mean, or of its unbiased variance, while every such norm
    before it normalises by the batch as in training; other modules run as in evaluation. Counts of batches stay.

    Args:
        model: The model; its modules keep their modes.
        batches: Inputs ``[batch, ...]`` of two examples or more, read once; without any, all stays as it is.
    """
    norms = running_norms(model)
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    model.eval()
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
    seen = [False] * len(norms)
    try:
        with torch.no_grad():
            for inputs in batches:
                model(inputs)
        seen = [bool(norm.num_batches_tracked) for norm in norms]
    finally:
        for norm, momentum, values, found in zip(norms, momenta, before, seen, strict=True):
            norm.momentum = momentum
            for name, buffer in norm.named_buffers():
                if not found or name == "num_batches_tracked":
                    buffer.copy_(values[name])
        for module, mode in modes.items():
            module.training = mode


def running_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms that keep running statistics; not those that a model leaves in evaluation mode in training."""
    return list(_running_norms(model).values())


def names_of_running_norms(model: nn.Module) -> list[str]:
    """Where in the model the norms of `running_norms` are, such as ``"features.1"``."""
    return list(_running_norms(model))


def _running_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    found = {n: m for n, m in model.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats}
    if not found:
        return {}
    modes = {module: module.training for module in model.modules()}
    model.train()
    found = {name: norm for name, norm in found.items() if norm.training}
    for module, mode in modes.items():
        module.training = mode
    return found


def has_static_norms(model: nn.Module) -> bool:
    """Whether a model has batch norms that keep no running statistics."""
    return bool(_static_norms(model))


def keep_statistics(model: nn.Module) -> None:
    """Makes static batch norms that have statistics ordinary ones, which evaluate by them wherever they are run."""
    for layer in _static_norms(model):
        if layer.running_mean is not None:
            layer.track_running_stats = True
            layer.num_batches_tracked = torch.zeros((), dtype=torch.long)


def forget_statistics(model: nn.Module) -> None:
    """Undoes `recompute_statistics`: static norms evaluate by batch statistics again."""
    for layer in _static_norms(model):
        layer.running_mean = layer.running_var = None


def _static_norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and not m.track_running_stats]


def _device(layer: _BatchNorm) -> torch.device | None:
    return layer.weight.device if layer.affine else None


def never_negative(module: nn.Module) -> set[str]:
    """Names of the buffers that hold variances and counts of batches, of batch and instance norms."""
    return {
        f"{path}.{name}" if path else name
        for path, norm in module.named_modules()
        if isinstance(norm, _NormBase)
        for name, buffer in norm.named_buffers(recurse=False)
        if name in ("running_var", "num_batches_tracked") and buffer is not None
    }
