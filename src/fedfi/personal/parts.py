"""Which part of a model a method shares: all of it, nothing, its head, or its body.

The head is the last module that has parameters of its own, or the modules that `head` names; the body is the rest.
Buffers belong to the module that has them. A head without any parameter is a mistake, but for `[]`, which says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedfi.errors import InputError, unknown

Part = Literal["all", "none", "head", "body"]
Head = Annotated[
    list[str] | None,
    Field(description="modules that make up the head, by name; none given: the last one that has parameters"),
]


def names_of(module: nn.Module, part: Part, head: Iterable[str] | None = None) -> set[str]:
    """Names of the parameters and buffers of a part of a module.

    Args:
        module: The model.
        part: Which part.
        head: Names of the head's modules; None: the last module with parameters of its own.

    Raises:
        InputError: If `head` names a module that the model lacks or that has no parameters, or if nothing is left for
            the body that is asked for.
    """
    everything = {n for n, _ in [*module.named_parameters(), *module.named_buffers()]}
    if part in ("all", "none"):
        return everything if part == "all" else set()
    chosen = last_modules(module, 1) if head is None else list(head)
    modules = dict(module.named_modules())
    owners = [n for n, m in modules.items() if n and any(True for _ in m.parameters())]
    for name in chosen:
        if name not in modules:
            raise InputError(f"head: {unknown('module', name, owners)}")
        if not any(True for _ in modules[name].parameters()):
            which = ", ".join(owners)
            raise InputError(f"head: module {name!r} has no parameters that could stay or travel (choose from {which})")
    found = within(module, chosen)
    if part == "body" and head and found.issuperset(n for n, _ in module.named_parameters()):
        raise InputError(f"head = {chosen}: is the whole model, and leaves no body (leave some of {owners} out)")
    return found if part == "head" else everything - found


def within(module: nn.Module, modules: Iterable[str]) -> set[str]:
    """Names of the parameters and buffers that lie in some modules of a module."""
    everything, chosen = [*module.named_parameters(), *module.named_buffers()], list(modules)
    return {n for n, _ in everything if any(not m or n == m or n.startswith(f"{m}.") for m in chosen)}


def last_modules(module: nn.Module, count: int) -> list[str]:
    """Names of the last `count` modules that have parameters of their own, in the model's order."""
    owners = [n for n, m in module.named_modules() if any(True for _ in m.parameters(recurse=False))]
    return owners[len(owners) - min(count, len(owners)) :]
