"""From smaller tensors to a smaller module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fedfi.channels.slicing import Group
from fedfi.channels.tracing import Example, arguments, evaluating
from fedfi.channels.walking import Norm
from fedfi.errors import InputError

Module = TypeVar("Module", bound=nn.Module)


class Shrinker:
    """Makes smaller copies of modules of one architecture, and checks that they run.

    Args:
        norms: Normalisations that know their number of channels.
        groups: The groups.
        example: What a smaller module must run on.
    """

    def __init__(self, norms: tuple[Norm, ...], groups: tuple[Group, ...], example: Example) -> None:
        self._norms = norms
        self._groups = groups
        self._example = example
        self._runs: set[tuple[int, ...]] = set()

    def __call__(self, module: Module, small: dict[int, Tensor], units: Mapping[str, Tensor]) -> Module:
        """A copy of a module with other tensors in it.

        Args:
            module: The module.
            small: For the identity of each parameter and buffer, the tensor that takes its place.
            units: The units that they keep.
        """
        shrunk: Module = copy.deepcopy(module, dict(small))
        for each in shrunk.modules():
            resize(each)
        counts = tuple(int(units[group.name].sum()) for group in self._groups)
        if counts not in self._runs:
            self._try(shrunk, module)
            self._runs.add(counts)
        return shrunk

    def _try(self, shrunk: nn.Module, module: nn.Module) -> None:
        device = next((each.device for each in small_tensors(shrunk)), torch.device("cpu"))
        args, kwargs = arguments(_moved(self._example, device))
        with evaluating(shrunk), torch.no_grad():
            try:
                shrunk(*args, **kwargs)
            except Exception as error:
                raise InputError(self._fails(shrunk, module, error)) from error

    def _fails(self, shrunk: nn.Module, module: nn.Module, error: Exception) -> str:
        names = {id(each): name for name, each in shrunk.named_modules()}
        inner, step = "", error.__traceback__
        while step is not None:
            owner = step.tb_frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                inner = names.get(id(owner), "") or inner
            step = step.tb_next
        place = shrunk.get_submodule(inner) if inner else shrunk
        shapes = ", ".join(
            f"{name} {list(each.shape)}" for name, each in list(place.named_parameters(recurse=False))[:4]
        )
        line = next((text for text in str(error).splitlines() if text.strip()), "")
        return (
            f"{type(module).__name__} does not run with fewer channels (in {inner or 'its forward'}"
            f"{f', with {shapes}' if shapes else ''}): {line[:200]}; a size is fixed in its code: read it off a "
            "tensor's shape (-1 in a view) instead"
        )


def small_tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def resize(module: nn.Module) -> None:
    """Sets the numbers that a module of torch keeps beside its tensors, by their shapes."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = weight.shape
    elif isinstance(module, _ConvNd):
        _resize_convolution(module)
    elif isinstance(module, _NormBase):
        known = next((each for each in (weight, module.running_mean) if each is not None), None)
        if known is not None:
            module.num_features = len(known)
    elif isinstance(module, nn.GroupNorm) and weight is not None:
        if module.num_groups > 1:
            module.num_groups = len(weight) * module.num_groups // module.num_channels
        module.num_channels = len(weight)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and weight is not None:
        module.normalized_shape = tuple(weight.shape)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(weight)


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


def _moved(example: Example, device: torch.device) -> Any:
    if isinstance(example, Tensor):
        return example.to(device)
    if isinstance(example, tuple):
        return tuple(each.to(device) if isinstance(each, Tensor) else each for each in example)
    return {name: each.to(device) if isinstance(each, Tensor) else each for name, each in example.items()}
