"""What a level's ratio means: a fraction of the parameters, or the width of the network.

A network of width w has about w^2 of the parameters, so the two kinds must not be mixed in a comparison. Each method
takes either and is brought to it by the channel groups of the network: structured methods search the width whose
parameters fit a fraction, unstructured ones keep as many parameters as a network of that width has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

from fedfi.channels import Wiring, discover
from fedfi.errors import InputError
from fedfi.federation.task import Task
from fedfi.federation.workbench import Benches

RatioKind = Literal["params", "width"]


def wiring_of(task: Task, module: nn.Module) -> Wiring:
    """The channel groups of a task's model."""
    return discover(module, task.data.spec.example())


def wiring_at(benches: Benches) -> Wiring:
    """The same where a client works, found once."""
    return benches.known("wiring", lambda module: wiring_of(benches.task, module))


def fractions(kind: RatioKind, ratios: Iterable[float], task: Task, module: nn.Module) -> dict[float, float]:
    """The fraction of the parameters at each ratio."""
    if kind == "params":
        return {ratio: ratio for ratio in ratios}
    wiring = wiring_of(task, module)
    return {ratio: wiring.ratio_for(ratio) for ratio in ratios}


def check_cuts(wiring: Wiring, module: nn.Module, ratios: Iterable[float], kind: RatioKind) -> dict[float, float]:
    """The width at each ratio, after cutting the module once to each.

    Raises:
        InputError: If nothing of the module can be cut, or it does not run when it is cut.
    """
    smaller = [ratio for ratio in ratios if ratio < 1]
    if smaller and not wiring.groups:
        reasons = "; ".join(dict.fromkeys(f"{f.name}: {f.reason}" for f in wiring.frozen[:3]))
        raise InputError(
            f"no channels of {type(module).__name__} can be cut, as level {smaller[0]:g} asks for"
            f"{f' ({reasons})' if reasons else ''}; methods without channels, such as fiarse, can have parts of it"
        )
    found = widths(kind, ratios, wiring)
    for width in sorted(set(found.values())):
        if width < 1:
            wiring.shrink(module, wiring.prefix(width))
    return found


def widths(kind: RatioKind, ratios: Iterable[float], wiring: Wiring) -> dict[float, float]:
    """The width at each ratio.

    Raises:
        InputError: If a level is smaller than one unit of each group, with the nearest one that is not.
    """
    if kind == "width":
        return {ratio: ratio for ratio in ratios}
    found = {}
    for ratio in ratios:
        try:
            found[ratio] = wiring.width_for(ratio)
        except InputError as error:  # the mix is one of numbers in (0, 1], so it is too small
            raise InputError(f"algorithm.capacities: {error}") from error
    return found
