"""Which parameters a mask may set to zero: not those that are normed before they are used.

Weight normalisation uses v / |v|. Where a mask leaves out a whole row of v, that is zero by zero, and every output is
NaN. So are other parametrizations that divide by a norm of what they are made of.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fedfi.errors import InputError
from fedfi.federation.workbench import Workbench


def check_maskable(bench: Workbench, fractions: Iterable[float]) -> None:
    """Refuses models of which a mask would make NaN.

    Args:
        bench: Holds the model; what is not in its pools is never masked.
        fractions: Of the selectable parameters, at each level.

    Raises:
        InputError: Naming the parameter, how it is normed, and what to do.
    """
    if all(fraction >= 1 for fraction in fractions):
        return
    pooled = set(bench.layout.names[: sum(bench.layout.pools)])
    for name, norm in normed(bench.module, pooled):
        raise InputError(
            f"{name!r} is normed by {norm} before it is used, which makes NaN where a mask leaves out a whole row;"
            f" take that off (torch.nn.utils.parametrize.remove_parametrizations), leave the parameter out of the"
            f" model's selection_pools(), or take a method that cuts channels, such as heterofl"
        )


def normed(module: nn.Module, names: set[str]) -> Iterator[tuple[str, str]]:
    """Which of these parameters must not be zero, and what they are normed by."""
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        if parametrize.is_parametrized(part):
            for tensor, steps in part.parametrizations.items():
                found = [n for n, _ in steps.named_parameters(recurse=False)]
                found = [n for n in found if f"{prefix}parametrizations.{tensor}.{n}" in names]
                if found and not _finite_at_zero(steps, found):
                    kinds = ", ".join(type(step).__name__.strip("_") for step in steps)
                    yield f"{prefix}parametrizations.{tensor}.{found[-1]}", kinds
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):  # of older torch, without parametrizations
                name = prefix + hook.name + ("_v" if isinstance(hook, WeightNorm) else "_orig")
                if name in names:
                    yield name, type(hook).__name__


def _finite_at_zero(steps: nn.Module, names: list[str]) -> bool:
    """Whether a parametrization makes numbers where these of its parameters are zero."""
    steps = copy.deepcopy(steps).eval()
    with torch.no_grad():
        for name, parameter in steps.named_parameters(recurse=False):
            if name in names:
                parameter.zero_()
        return bool(torch.isfinite(steps()).all())
