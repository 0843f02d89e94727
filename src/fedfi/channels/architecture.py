"""What is taken for the architecture of a module: everything that its forward pass reads but numbers that train.

Beside classes, shapes and the printed structure these are flags and other attributes, functions given to a
constructor, hooks, and the code of a user's own classes and functions with the globals and closures that it names.
Code of libraries is known by its name. What has no content that could be compared (a generator, a lock) is known by
its identity: another module then is another architecture, which costs a discovery and is never wrong.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import re
import site
import sys
import sysconfig
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Set
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils import _pytree as pytree

from fedfi.channels.tracing import Example

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format, enum.Enum, PurePath, re.Pattern, np.generic, np.dtype,
)  # fmt: skip
_NAMED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)
_LISTED = {"_parameters", "_buffers", "_modules"}  # by name, with the printed structure
_NO_MATTER = {"training", "_is_full_backward_hook", "_version", "_compiled_call_impl"}
_UNREAD = ("_backward", "_state_dict", "_load_state", "_non_persistent")  # bookkeeping that no forward pass reads
_OF_A_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__", "_abc_impl",
    "__parameters__", "__orig_bases__", "__slots__",
}  # fmt: skip
_MOST = 200_000  # objects; what lies beyond is known by its identity


def architecture_key(module: nn.Module, example: Example) -> str:
    """A digest of what is taken for the architecture.

    It covers what `forward` can read: classes and the code of a user's own ones, the printed structure, attributes,
    functions with what they close over, hooks, names, shapes and types of parameters and buffers, which of them are
    one tensor or need no gradient, and the example's shapes and types. It cannot see values of parameters and buffers
    that decide what is computed, nor code of libraries that was changed after the import.

    Args:
        module: The module.
        example: See `fedfi.channels.discover`.
    """
    return digest(module, example)[0]


def digest(module: nn.Module, example: Example) -> tuple[str, list[object]]:
    """The key, and the objects that it knows by their identity, which must live as long as the key is used."""
    found = _Digest(module)
    found.say(str(module))
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            found.say(kind, name, found.places[id(tensor)], tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
    for hooks in (torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks):
        found.each("global", hooks.values())
    found.add(module)
    for leaf in pytree.tree_leaves(example if not isinstance(example, Tensor) else (example,)):
        found.say("example", f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, Tensor) else repr(leaf))
    if not isinstance(example, Tensor | tuple):
        found.say(repr(sorted(example)))
    return found.hash.hexdigest(), found.pinned


class _Digest:
    """Takes in objects one after the other; each object once, so that cycles end.

    Args:
        module: Whose parameters and buffers are known by their names.
    """

    def __init__(self, module: nn.Module) -> None:
        self.hash = hashlib.sha256()
        self.pinned: list[object] = []
        self.places: dict[int, int] = {}
        for tensors in (module.named_parameters, module.named_buffers):
            for _, tensor in tensors(remove_duplicate=False):
                self.places.setdefault(id(tensor), len(self.places))
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # so that no identity is used twice

    def say(self, *words: object) -> None:
        """Takes in words as they print."""
        self.hash.update(f"\n{words!r}".encode(errors="surrogatepass"))

    def each(self, kind: str, values: Iterable[Any]) -> None:
        """Takes in several objects."""
        self.say(kind)
        for value in values:
            self.add(value)
        self.say("end")

    def add(self, value: Any) -> None:
        """Takes in any object by its content."""
        if isinstance(value, _PLAIN):
            self.say(type(value).__qualname__, value)
            return
        if id(value) in self._seen:
            self.say("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if len(self._seen) > _MOST:
            self._identity(value)
        elif isinstance(value, Tensor | np.ndarray):
            self._numbers(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif not self._callable(value):
            self._object(value)

    def _module(self, module: nn.Module) -> None:
        self.add(type(module))
        for name, value in sorted(vars(module).items()):
            if name in _LISTED:
                self.say(name, list(value))
                self.each(name, value.values())
            elif name in _NO_MATTER or name.startswith(_UNREAD):
                continue
            elif "_hooks" in name and isinstance(value, dict):
                self.each(name, value.values())  # their keys count all hooks of the process
            else:
                self.say("attribute", name)
                self.add(value)

    def _class(self, kind: type) -> None:
        self.say("class", kind.__module__, kind.__qualname__)
        for base in kind.__mro__:
            self.say("base", base.__module__, base.__qualname__)
            if _is_own(getattr(sys.modules.get(base.__module__), "__file__", None), base.__module__):
                for name, value in vars(base).items():
                    if name not in _OF_A_CLASS:
                        self.say("entry", name)
                        self.add(value)

    def _callable(self, value: Any) -> bool:
        """Takes in a function or what stands for one; false if it is something else."""
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.each("method", (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self.each("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, staticmethod | classmethod | functools._lru_cache_wrapper):
            self.each(type(value).__name__, (value.__wrapped__,))
        elif isinstance(value, property):
            self.each("property", (value.fget,))
        elif isinstance(value, functools.cached_property):
            self.each("property", (value.func,))
        elif isinstance(value, _NAMED):
            self.say("named", getattr(value, "__module__", ""), getattr(value, "__qualname__", repr(value)))
            if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType):
                self.add(value.__self__)
        else:
            return False
        return True

    def _function(self, function: types.FunctionType) -> None:
        self.say("function", function.__module__, function.__qualname__)
        self.each("defaults", (function.__defaults__, function.__kwdefaults__))
        self.say("closure")
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not filled yet
                self.say("empty")
        if _is_own(function.__code__.co_filename, function.__module__):
            self._code(function.__code__, function.__globals__)

    def _code(self, code: types.CodeType, names: Mapping[str, Any]) -> None:
        self.say("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, names)
            else:
                self.say(constant)
        for name in code.co_names:
            if name in names:
                self.say("global", name)
                self.add(names[name])

    def _object(self, value: Any) -> None:
        if isinstance(value, types.ModuleType | logging.Logger):
            self.say(type(value).__name__, getattr(value, "__name__", None) or value.name)
        elif isinstance(value, weakref.ReferenceType):
            self.each("reference", (value(),))
        elif isinstance(value, dict | OrderedDict | types.MappingProxyType):
            self.each(type(value).__qualname__, (each for item in value.items() for each in item))
        elif isinstance(value, list | tuple | deque):
            self.each(type(value).__qualname__, value)
            self._fields(value)
        elif isinstance(value, Set):
            self.say(type(value).__qualname__, sorted(map(repr, value)))
        elif not self._fields(value):
            self._identity(value)

    def _fields(self, value: Any) -> bool:
        """Takes in an object's attributes; false if it has none to show."""
        slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
        if not hasattr(value, "__dict__") and not slots:
            return False
        self.add(type(value))
        for name, each in [*sorted(vars(value).items() if hasattr(value, "__dict__") else ())]:
            self.say("attribute", name)
            self.add(each)
        for name in slots:
            self.say("slot", name)
            self.add(getattr(value, name))
        return True

    def _numbers(self, value: Tensor | np.ndarray[Any, Any]) -> None:
        if id(value) in self.places:
            self.say("tensor", self.places[id(value)])
            return
        self.say("numbers", tuple(value.shape), str(value.dtype))
        try:
            array = value.detach().cpu().contiguous().flatten() if isinstance(value, Tensor) else value
            self.hash.update((array.view(torch.uint8).numpy() if isinstance(array, Tensor) else array).tobytes())
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # no numbers in memory that could be read
            self._identity(value)

    def _identity(self, value: object) -> None:
        self.say("identity", type(value).__qualname__, id(value))
        self.pinned.append(value)


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(n for n in names if n not in ("__dict__", "__weakref__"))


@functools.cache
def _is_own(file: str | None, module: str | None) -> bool:
    """Whether code is a user's: not of Python, nor in a folder of installed packages."""
    if module in sys.builtin_module_names or (module or "").partition(".")[0] in ("torch", "builtins"):
        return False
    if not file or file.startswith("<"):  # typed in, a notebook's cell, or made by exec
        return (module or "") not in sys.stdlib_module_names
    return not any(Path(file).is_relative_to(folder) for folder in _library_folders())


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), str(Path(torch.__file__).parent.parent)]
    return tuple(Path(folder) for folder in dict.fromkeys(folders))
