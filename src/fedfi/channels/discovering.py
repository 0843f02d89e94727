"""From a module to its wiring: trace, tie, group, verify."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from fedfi.channels.architecture import digest
from fedfi.channels.grouping import Components, Unit, alone, frozen
from fedfi.channels.slicing import Group
from fedfi.channels.tracing import Example, arguments, one_at_a_time, trace
from fedfi.channels.verifying import Check
from fedfi.channels.walking import walk
from fedfi.channels.wiring import Wiring
from fedfi.errors import InputError

_KEPT = 16
_cache: OrderedDict[str, tuple[Wiring, list[object]]] = OrderedDict()
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""Modules of torch that stand before another one, and under which name they hold it."""


def discover(module: nn.Module, example: Example) -> Wiring:
    """Finds which axes of which parameters and buffers are one and the same channel axis.

    The module is traced in evaluation mode, channels that meet are tied, and each group of units is checked on
    the module itself: exchanging its units must leave the output on the example as it is, to 1e-8 of its largest
    number in double precision. What fails, or is not understood, is frozen. The last 16 wirings are remembered by
    architecture, see `architecture_key`. Threads may call this at the same time, and wait for each other.

    Args:
        module: Any module whose control flow does not depend on values; it is left as it was.
        example: One input tensor ``[batch, ...]``, a tuple of positional arguments, or a mapping of keyword
            arguments. A batch of two or more, so that the batch is not mistaken for a constant.

    Returns:
        The wiring, which holds no tensor of the module.

    Raises:
        InputError: If the module cannot be traced or run on the example, or the example is none.
    """
    with one_at_a_time():  # another thread's trace may hold this module's tensors, which then have no numbers
        check_module(module)
        arguments(example)
        check_numbers(module)
        check_example(example)
        key, pinned = digest(module, example)
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key][0]
        wiring = _discover(module, example, key)
        _cache[key] = wiring, pinned
        if len(_cache) > _KEPT:
            _cache.popitem(last=False)
        return wiring


def check_module(module: nn.Module) -> None:
    """Refuses what has no channels to find: wrappers of modules, and modules whose tensors hold nothing yet.

    Raises:
        InputError: Saying what was given, and what to give.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        given = f"the class {module.__name__}" if isinstance(module, type) else f"a {kind}"
        raise InputError(f"channels are found in a torch.nn.Module, got {given}")
    for path, part in module.named_modules():
        held = _WRAPPERS.get(type(part).__name__)
        if held is not None and type(part).__module__.startswith("torch.") and hasattr(part, held):
            where = f" ({path!r})" if path else ""
            inner = type(getattr(part, held)).__name__
            raise InputError(
                f"the module is a torch {type(part).__name__}{where}, which hides the {inner} that it holds;"
                f" give that one, its attribute {held!r}, and wrap or compile afterwards"
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(f"{path or kind!r} is a TorchScript module, which cannot be cut; give the nn.Module")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise InputError(f"{name!r} of {kind} has no shape yet; run the module once before")
        if tensor.is_meta:
            raise InputError(f"{name!r} of {kind} is on the device 'meta' and has no numbers; make it on the CPU")


def check_numbers(module: nn.Module) -> None:
    """Refuses parameters that are no numbers, which would make every output one and the same.

    Raises:
        InputError: Naming the first of them.
    """
    for name, tensor in module.named_parameters():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            count = int(tensor.isnan().sum())
            raise InputError(
                f"{name!r} of {type(module).__name__} holds {count} NaN, behind which no exchange of"
                " channels shows; initialise it"
            )


def check_example(example: Example) -> None:
    """Refuses an example of which a tensor holds no number at all.

    Raises:
        InputError: Saying so.
    """
    for leaf in pytree.tree_leaves(example if isinstance(example, tuple) else (example,)):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() and bool(leaf.isnan().all()):
            raise InputError(
                f"the example {list(leaf.shape)} is NaN everywhere, so that no exchange of channels could be seen;"
                " give another example"
            )


def _discover(module: nn.Module, example: Example, key: str) -> Wiring:
    traced = trace(module, example)
    components = Components(walk(traced))
    groups: list[Group] = []
    members: dict[str, list[Unit]] = {}
    still: list[tuple[Unit, str]] = list(components.frozen.values())
    for units in components.classes():
        if len(units) == 1:
            still += alone(units)
        else:
            group = components.group(units, members)
            groups.append(group)
            members[group.name] = units
    if groups:
        check = Check(module, traced.tensors, example, traced.rounds)
        groups, failed = _verified(check, components, groups, members)
        still += failed
    return Wiring(
        key=key,
        groups=tuple(groups),
        frozen=frozen(still),
        outputs=components.logits(),
        shapes={name: tuple(tensor.shape) for name, tensor in traced.tensors.items()},
        aliases=traced.aliases,
        trained=tuple(n for n in traced.tensors if n in traced.parameters and traced.tensors[n].requires_grad),
        extents=components.extents(groups, members),
        grouped=frozenset(components.walk.ledger.grouped),
        example=pytree.tree_map_only(Tensor, lambda each: each.detach().clone(), example),
    )


def _verified(
    check: Check, components: Components, groups: list[Group], members: dict[str, list[Unit]]
) -> tuple[list[Group], list[tuple[Unit, str]]]:
    """The groups that hold; one that fails is parted by the operations that see its units, and tried again."""
    failed: list[tuple[Unit, str]] = []
    bad = {group.name for group in check.failing(tuple(groups))}
    result: list[Group] = []
    for group in groups:
        if group.name not in bad:
            result.append(group)
            continue
        for units in components.finer(members.pop(group.name)):
            part = components.group(units, members)
            if len(units) > 1 and len(units) < group.units and check.holds((part,)):
                members[part.name] = units
                result.append(part)
            else:
                reason = "exchanging these units changes the output" if len(units) > 1 else "one of its kind"
                failed += [(unit, reason) for unit in units]
    if bad and not check.holds(tuple(result)):
        failed += [
            (u, "exchanging these units along with others changes the output") for g in result for u in members[g.name]
        ]
        result = []
    return result, failed


def forget() -> None:
    """Empties the memory of wirings."""
    _cache.clear()
