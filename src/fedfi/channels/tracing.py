"""From a module to a graph of ATen operations."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedfi.channels.given import shown
from fedfi.errors import InputError
from fedfi.importing import place

_lock = threading.RLock()

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Traced:
    """A module's graph.

    Args:
        program: What `torch.export` made of it.
        aliases: Every name of a parameter or buffer, to the first name of the same tensor.
        tensors: The parameters and buffers by their first names.
        parameters: Which of them are parameters.
        rounds: Whether numbers are made in more than one precision, or in less than single.
    """

    program: torch.export.ExportedProgram
    aliases: dict[str, str]
    tensors: dict[str, Tensor]
    parameters: frozenset[str]
    rounds: bool = False


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
    mended = "; torch.from_numpy makes a tensor of it" if hasattr(example, "__array__") else ""
    raise InputError(
        "the example must be a tensor, a tuple of arguments or a mapping of keyword arguments, got"
        f" {shown(example)}{mended}"
    )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """One thread at a time: tracing changes a module's mode, switches of torch, and Python's list of warnings."""
    with _lock:
        yield


def _renew() -> None:
    """A forked process has no thread that would give the lock back."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, uncompiled, with attention on its ordinary path; all is put back afterwards."""
    with one_at_a_time():
        modes = {each: each.training for each in module.modules()}
        compiled = {each: made for each in modes if (made := getattr(each, "_compiled_call_impl", None)) is not None}
        fast = torch.backends.mha.get_fastpath_enabled()
        module.eval()
        for each in compiled:
            each._compiled_call_impl = None
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for each, mode in modes.items():
                each.training = mode
            for each, made in compiled.items():
                each._compiled_call_impl = made


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch from saying on stderr and in its logs what an error of ours says in one line.

    What else is written meanwhile, by a network's own code or another thread, is written; only where the work inside
    fails, what this thread wrote is dropped.
    """
    loggers = [logging.getLogger(name) for name in [*logging.Logger.manager.loggerDict] if name.startswith("torch")]
    aside = _Aside(sys.stderr)
    for logger in loggers:
        logger.addFilter(_nothing)
    sys.stderr, before = aside, sys.stderr
    try:
        yield
        if text := aside.kept.getvalue():
            before.write(text)
    finally:
        sys.stderr = before
        for logger in loggers:
            logger.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False


class _Aside(io.TextIOBase):
    """Keeps what this thread writes; what others write goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread, self.kept = stream, threading.get_ident(), io.StringIO()

    def write(self, text: str) -> int:
        """Keeps or passes on."""
        return (self.kept if threading.get_ident() == self._thread else self._stream).write(text)

    def fileno(self) -> int:
        """Of the stream itself."""
        return self._stream.fileno()

    def flush(self) -> None:
        """Nothing is held back of other threads."""
        self._stream.flush()


def trace(module: nn.Module, example: Example) -> Traced:
    """The graph of one call in evaluation mode.

    Args:
        module: Any module; it is left as it was.
        example: See `arguments`.

    Raises:
        InputError: If `torch.export` cannot follow the module.
    """
    _start_autograd()
    args, kwargs = arguments(example)
    with evaluating(module), torch.no_grad(), warnings.catch_warnings():
        # Recurrent layers set their list of weights in each call, to the same ones.
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
        try:
            with quiet():
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
    return Traced(program, aliases, tensors, frozenset(parameters), _rounds(program))


def _rounds(program: torch.export.ExportedProgram) -> bool:
    kinds = {
        leaf.dtype
        for part in program.graph_module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
        for leaf in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }
    return len(kinds) > 1 or bool(kinds & {torch.float16, torch.bfloat16})


def _start_autograd() -> None:
    """Lets autograd start, which it does at its first backward pass, before `torch.export` has been used.

    After it, autograd counts one more device and starts a thread for it, and a process with such threads cannot fork
    workers that train ("Unable to handle autograd's threading in combination with fork-based multiprocessing").
    """
    with torch.enable_grad():
        torch.zeros((), requires_grad=True).clone().backward()


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
    where = (f" (in {inner!r})" if inner else "") + place(error)
    start = f"{type(module).__name__} cannot be traced{where}: "
    if "DataDependent" in type(error).__name__:
        return start + (
            "its control flow or a number of Python's (if, while, float(), .item()) depends on the values of tensors;"
            " compute with tensors alone, such as by torch.where, or take a method without channels, such as fiarse"
            " (for merges: average, fishermerge, regmean)"
        )
    line = next((text for text in str(error).splitlines() if text.strip()), "")
    return start + (
        f"{type(error).__name__}: {line[:200]}; channels need a forward pass of torch's operations whose control flow"
        " does not depend on values, and an example that it accepts; methods without channels, such as fiarse"
        " (for merges: average, fishermerge, regmean), do not"
    )
