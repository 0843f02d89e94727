"""Checks groups on the network itself: exchanging units must not change what it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from fedfi.channels.slicing import Group, pieces, reordered
from fedfi.channels.tracing import Example, arguments, evaluating

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative to the largest number of an output


class Check:
    """A network with numbers that let errors show, in double precision where it can.

    Args:
        module: The module.
        tensors: Its parameters and buffers by name.
        example: See `fedfi.channels.tracing.arguments`.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor], example: Example) -> None:
        self._module = module
        self._generator = torch.Generator().manual_seed(0)
        self._tree = self._telling(tensors)
        self._args, self._kwargs = arguments(example)
        self._dtype = torch.float64
        try:
            self._expected = self._run({})
        except Exception:  # a module that makes tensors of its own precision inside
            self._dtype = torch.float32
            self._expected = self._run({})

    def holds(self, groups: tuple[Group, ...]) -> bool:
        """Whether a permutation without a fixed unit of every group leaves all outputs as they are."""
        axes = pieces(groups)
        order = {group.name: self._cycle(group.units) for group in groups}
        moved = {name: reordered(self._tree[name], owners, order) for name, owners in axes.items()}
        try:
            made = self._run(moved)
        except Exception:
            return False
        return len(made) == len(self._expected) and all(
            _close(new, old, _TOLERANCE[self._dtype]) for new, old in zip(made, self._expected, strict=True)
        )

    def failing(self, groups: tuple[Group, ...]) -> list[Group]:
        """The groups that do not hold, by halves."""
        if not groups or self.holds(groups):
            return []
        if len(groups) == 1:
            return [groups[0]]
        middle = len(groups) // 2
        return self.failing(groups[:middle]) + self.failing(groups[middle:])

    def _run(self, changed: Mapping[str, Tensor]) -> list[Tensor]:
        tree = {name: self._cast(each) for name, each in (self._tree | dict(changed)).items()}
        args, kwargs = pytree.tree_map_only(Tensor, self._cast, (self._args, self._kwargs))
        with evaluating(self._module), torch.no_grad():
            made = torch.func.functional_call(self._module, tree, args, kwargs)
        found = outputs(made)
        if not found:
            raise TypeError(f"the output holds no tensor: {type(made)}")
        return found

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _cycle(self, count: int) -> Tensor:
        """A permutation that is one cycle (Sattolo)."""
        order = torch.randperm(count, generator=self._generator)
        cycle = torch.empty_like(order)
        cycle[order] = order.roll(1)
        return cycle

    def _telling(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in which norms have statistics, and no parameter is the same number everywhere."""
        statistics = {
            f"{path}.{kind}" if path else kind: kind
            for path, each in self._module.named_modules()
            if isinstance(each, _NormBase)
            for kind in ("running_mean", "running_var")
        }
        trained = {name for name, _ in self._module.named_parameters()}
        tree = {}
        for name, tensor in tensors.items():
            noise = torch.rand(tensor.shape, generator=self._generator, dtype=torch.float64).to(tensor.device)
            if name in statistics:
                tree[name] = noise + 0.5 if statistics[name] == "running_var" else noise - 0.5
            elif (
                name in trained
                and tensor.is_floating_point()
                and tensor.numel()
                and bool((tensor == tensor.flatten()[0]).all())
            ):
                tree[name] = tensor.detach().double() + 0.5 * noise
            else:
                tree[name] = tensor.detach()
        return tree


def outputs(made: Any) -> list[Tensor]:
    """The floating-point tensors of an output, however nested."""
    found = []
    for leaf in pytree.tree_leaves(made):
        if isinstance(leaf, Tensor):
            found += [leaf] if leaf.is_floating_point() else []
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += outputs(list(vars(leaf).values()))
    return found


def _close(new: Tensor, old: Tensor, tolerance: float) -> bool:
    if new.shape != old.shape:
        return False
    scale = float(old.abs().max()) if old.numel() else 0.0
    return bool(torch.allclose(new, old, rtol=0.0, atol=tolerance * max(scale, 1e-30), equal_nan=True))
