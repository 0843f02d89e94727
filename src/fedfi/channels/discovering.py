"""From a module to its wiring: trace, tie, group, verify."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from fedfi.channels.grouping import Components, Unit, alone, frozen
from fedfi.channels.slicing import Group
from fedfi.channels.tracing import Example, trace
from fedfi.channels.verifying import Check
from fedfi.channels.walking import walk
from fedfi.channels.wiring import Wiring
from fedfi.errors import InputError

_KEPT = 16
_cache: OrderedDict[str, Wiring] = OrderedDict()


def discover(module: nn.Module, example: Example) -> Wiring:
    """Finds which axes of which parameters and buffers are one and the same channel axis.

    The module is traced in evaluation mode, channels that meet are tied, and each group of units is checked on
    the module itself: exchanging its units must leave the output on the example as it is, to 1e-8 of its largest
    number in double precision. What fails, or is not understood, is frozen. The last 16 wirings are remembered by
    architecture; `architecture_key` says what that cannot see.

    Args:
        module: Any module whose control flow does not depend on values; it is left as it was.
        example: One input tensor ``[batch, ...]``, a tuple of positional arguments, or a mapping of keyword
            arguments. A batch of two or more, so that the batch is not mistaken for a constant.

    Returns:
        The wiring, which holds no tensor of the module.

    Raises:
        InputError: If the module cannot be traced, or the example is none.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"discover: module is a {type(module).__name__}, expected a torch.nn.Module")
    for name, tensor in module.named_parameters():
        if is_lazy(tensor):
            raise InputError(f"{name!r} of {type(module).__name__} has no shape yet; run the module once before")
    key = architecture_key(module, example)
    if key in _cache:
        _cache.move_to_end(key)
        return _cache[key]
    wiring = _discover(module, example, key)
    _cache[key] = wiring
    if len(_cache) > _KEPT:
        _cache.popitem(last=False)
    return wiring


def architecture_key(module: nn.Module, example: Example) -> str:
    """A digest of what is taken for the architecture.

    It covers the class, the printed structure, names, shapes and types of parameters and buffers, which of them
    are one tensor or need no gradient, and the example's shapes and types. It cannot see attributes that are not
    printed (a flag that `forward` reads, a function given to the constructor), code that was patched after the
    import, or values that decide what is computed.

    Args:
        module: The module.
        example: See `discover`.
    """
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}\n{module}".encode())
    first: dict[int, int] = {}
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            place = first.setdefault(id(tensor), len(first))
            digest.update(
                f"\n{kind} {name} {place} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}".encode()
            )
    for leaf in pytree.tree_leaves(example if not isinstance(example, Tensor) else (example,)):
        seen = f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, Tensor) else repr(leaf)
        digest.update(f"\nexample {seen}".encode())
    if not isinstance(example, Tensor | tuple):
        digest.update(repr(sorted(example)).encode())
    return digest.hexdigest()


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
        groups, failed = _verified(Check(module, traced.tensors, example), components, groups, members)
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
