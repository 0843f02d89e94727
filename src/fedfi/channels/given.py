"""Checks of what a user gives: kinds of arguments, named in the error with what was expected."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedfi.errors import InputError


def shown(value: object) -> str:
    """A value by its kind, and by itself where that is short."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return f"a {type(value).__name__}, {text}" if len(text) <= 60 else f"a {type(value).__name__}"


def number(what: str, value: Any, expected: str) -> float:
    """A real number, of whatever kind."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InputError(f"{what} must be {expected}, got {shown(value)}")
    return float(value)


def part(what: str, value: Any) -> float:
    """A number in (0, 1], such as a width."""
    found = number(what, value, "a number in (0, 1]")
    if not 0 < found <= 1:
        near = "any number above 0, such as 0.1" if found <= 0 else "1"
        raise InputError(f"{what} must be in (0, 1], got {found:g} (nearest valid: {near})")
    return found


def whole(what: str, value: Any) -> int:
    """A whole number, of whatever kind."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise InputError(f"{what} must be a whole number, got {shown(value)}")
    return int(value)


def generator(value: Any) -> None:
    """Refuses what is no source of random draws."""
    if not isinstance(value, torch.Generator):
        raise InputError(
            f"generator must be a torch.Generator, such as torch.Generator().manual_seed(0), got {shown(value)}"
        )


def module(value: Any) -> None:
    """Refuses what is no module."""
    if not isinstance(value, nn.Module):
        raise InputError(f"module must be a torch.nn.Module, got {shown(value)}")


def packed(value: Any) -> None:
    """Refuses what is no bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InputError(f"packed units must be bytes, as `pack` makes them, got {shown(value)}")


def table(what: str, value: Any, expected: str) -> None:
    """Refuses what does not map names."""
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must map {expected}, got {shown(value)}")
    for key in value:
        name(f"a name in {what}", key)


def tree(what: str, value: Any) -> None:
    """Refuses what does not map names to tensors."""
    table(what, value, "names to tensors")
    for key, tensor in value.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"{what} must map names to tensors, got {shown(tensor)} for {key!r}")


def name(what: str, value: Any) -> None:
    """Refuses what is no text."""
    if not isinstance(value, str):
        raise InputError(f"{what} must be a text, got {shown(value)}")


def names(value: Any) -> list[str]:
    """The names in a list or another collection; a single text is none."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"names must be a list of names, got {shown(value)}")
    found = list(value)
    for each in found:
        name("a name", each)
    return found


def count(what: str, value: Any) -> int:
    """A number of units, given as such or as flags."""
    if isinstance(value, Tensor):
        if value.dtype != torch.bool:
            raise InputError(f"{what} must be flags, got {shown(value)}")
        return int(value.sum())
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise InputError(f"{what} must be a number of units or flags, got {shown(value)}")
    return int(value)
