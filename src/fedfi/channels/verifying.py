"""Checks groups on the network itself: exchanging units must not change what it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedfi.channels.slicing import Group, pieces, reordered
from fedfi.channels.tracing import Example, arguments, evaluating, innermost
from fedfi.errors import InputError, first_line

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative to the largest number of an output
_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


class Widened(TorchDispatchMode):
    """Within it every operation works in double precision, also where a network's code asks for another one."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation, on and to double precision."""
        args, kwargs = pytree.tree_map(_wide, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, _wide, func(*args, **kwargs))


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if isinstance(value, Tensor) and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return value


class Check:
    """A network with numbers that let errors show, in double precision where it can.

    Args:
        module: The module.
        tensors: Its parameters and buffers by name.
        example: See `fedfi.channels.tracing.arguments`.
        rounds: Whether the network computes in several precisions, so that it must be kept from rounding.

    Raises:
        InputError: If the module does not run on the example, or makes no number.
    """

    def __init__(
        self, module: nn.Module, tensors: Mapping[str, Tensor], example: Example, rounds: bool = False
    ) -> None:
        self._module = module
        self._generator = torch.Generator().manual_seed(0)
        self._tree = self._telling(tensors)
        self._args, self._kwargs = arguments(example)
        self._expected = self._first_run(rounds)
        if not any(bool(each.isfinite().any()) for each in self._expected if each.numel()):
            raise InputError(
                f"{type(module).__name__} makes no finite number of the example, so that no exchange of channels"
                " could be seen; give another example"
            )

    def _first_run(self, rounds: bool) -> list[Tensor]:
        """The outputs, in the first way of running the network that works; the others are run the same way."""
        problem: Exception | None = None
        ways = [(torch.float64, True), (torch.float64, False)] if rounds else [(torch.float64, False)]
        for self._dtype, self._widened in [*ways, (torch.float64, True), (torch.float32, False)]:
            try:
                return self._run({})
            except Exception as error:
                problem = problem or error
        assert problem is not None  # a way that works returns
        inner = innermost(self._module, problem)
        raise InputError(
            f"{type(self._module).__name__} does not run on the example{f' (in {inner!r})' if inner else ''}:"
            f" {first_line(problem)[:300]}"
        ) from problem

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
            close(new, old, _TOLERANCE[self._dtype]) for new, old in zip(made, self._expected, strict=True)
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
        precision = Widened() if self._widened else nullcontext()  # type: ignore[no-untyped-call]  # torch's
        with evaluating(self._module), torch.no_grad(), precision:
            made = torch.func.functional_call(self._module, tree, args, kwargs)
        found = outputs(made)
        if not found:
            raise TypeError(f"the output holds no tensor of floating-point numbers: {type(made)}")
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


def close(new: Tensor, old: Tensor, tolerance: float) -> bool:
    """Whether two outputs differ by no more than this share of the largest number of the second."""
    if new.shape != old.shape:
        return False
    finite = old[old.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(new, old, rtol=0.0, atol=tolerance * max(scale, 1e-30), equal_nan=True))
