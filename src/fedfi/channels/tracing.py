"""From a module to a graph of ATen operations."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedfi.errors import InputError

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Traced:
    """A module's graph.

    Args:
        program: What `torch.export` made of it.
        aliases: Every name of a parameter or buffer, to the first name of the same tensor.
        tensors: The parameters and buffers by their first names.
        parameters: Which of them are parameters.
    """

    program: torch.export.ExportedProgram
    aliases: dict[str, str]
    tensors: dict[str, Tensor]
    parameters: frozenset[str]


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of one call.

    Args:
        example: One tensor, a tuple of positional arguments, or a mapping of keyword arguments.

    Raises:
        InputError: If it is none of these.
    """
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, tuple):
        return example, {}
    if isinstance(example, Mapping):
        return (), dict(example)
    raise InputError(
        f"the example must be a tensor, a tuple of arguments or a mapping of keyword arguments, got {type(example)}"
    )


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, with attention on its ordinary path; all is put back afterwards."""
    modes = {each: each.training for each in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for each, mode in modes.items():
            each.training = mode


def trace(module: nn.Module, example: Example) -> Traced:
    """The graph of one call in evaluation mode.

    Args:
        module: Any module; it is left as it was.
        example: See `arguments`.

    Raises:
        InputError: If `torch.export` cannot follow the module.
    """
    args, kwargs = arguments(example)
    with evaluating(module), torch.no_grad(), warnings.catch_warnings():
        # Recurrent layers set their list of weights in each call, to the same ones.
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
        try:
            program = torch.export.export(module, args, kwargs, strict=False)
        except Exception as error:
            raise InputError(_untraceable(module, error)) from error
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    parameters = set()
    named: list[tuple[str, Tensor, bool]] = []
    named += [(name, each, True) for name, each in module.named_parameters(remove_duplicate=False)]
    named += [(name, each, False) for name, each in module.named_buffers(remove_duplicate=False)]
    for name, tensor, trained in named:
        aliases[name] = first.setdefault(id(tensor), name)
        if aliases[name] == name:
            tensors[name] = tensor
            if trained:
                parameters.add(name)
    return Traced(program, aliases, tensors, frozenset(parameters))


def innermost(module: nn.Module, error: Exception) -> str:
    """The name of the innermost submodule on an error's stack; empty if there is none."""
    names = {id(each): name for name, each in module.named_modules()}
    found, step = "", error.__traceback__
    while step is not None:
        found = names.get(id(step.tb_frame.f_locals.get("self")), "") or found
        step = step.tb_next
    return found


def _untraceable(module: nn.Module, error: Exception) -> str:
    inner = innermost(module, error)
    where = f" (in {inner!r})" if inner else ""
    line = next((text for text in str(error).splitlines() if text.strip()), "")
    return (
        f"{type(module).__name__} cannot be traced{where}: {type(error).__name__}: {line[:200]}; channels need a "
        "forward pass whose control flow does not depend on values, and an example that it accepts"
    )
