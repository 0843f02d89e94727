"""What users give functions and classes in Python: what does not fit is one line, as it is in files."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Number
from typing import Any, ParamSpec, TypeVar

from fedfi.errors import InputError
from fedfi.validation import nearest_key

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ArgumentError(InputError, TypeError):
    """A call whose arguments do not fit the function: one is unknown, missing, or given without its name."""


def named(function: Callable[P, R]) -> Callable[P, R]:
    """A function that words a call that does not fit it: which argument is unknown or missing, and the nearest one."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError:
            _check_call(function.__name__, _parameters(function), args, options)
            raise

    return call


class Named(type):
    """The metaclass of classes that word a call that does not fit them, as `named` does."""

    def __call__(cls: type[T], *args: Any, **options: Any) -> T:
        """Makes an instance.

        Raises:
            ArgumentError: If an argument is unknown or missing, or one too many.
        """
        try:
            return super().__call__(*args, **options)  # type: ignore[misc, no-any-return]
        except TypeError:
            _check_call(cls.__name__, _parameters(cls.__init__)[1:], args, options)
            raise


def expect(what: str, value: object, kind: type[Any] | tuple[type[Any], ...], expected: str) -> None:
    """Checks that an object is of a kind.

    Args:
        what: What it is called, such as ``"task"``.
        value: What was given.
        kind: Its class, or several.
        expected: What to give instead.

    Raises:
        InputError: Naming all of them.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise InputError(f"{what} is {described(value)}, expected {expected}")


def whole(what: str, value: object, least: int, expected: str = "") -> int:
    """A whole number, of Python's or of numpy's kind.

    Args:
        what: What it is called, such as ``"seed"``.
        value: What was given.
        least: The least that is allowed; the most is that of 64 bits.
        expected: What it is a number of, such as ``"a number of examples"``.

    Raises:
        InputError: Naming all of them, and the nearest valid number.
    """
    given = value.item() if isinstance(value, Number) and hasattr(value, "item") else value
    what = f"{what} is {described(given)}, expected {expected or 'a whole number'} of at least {least}"
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number < 2**63:
            return number
        raise InputError(f"{what} (nearest valid: {max(least, min(number, 2**63 - 1))})")
    if isinstance(value, float) and math.isfinite(value):
        what += f" (nearest valid: {max(least, round(value))})"
    raise InputError(what)


def described(value: object) -> str:
    """What an object is, in a few words: ``None``, ``3``, ``'text'``, ``the class Net``, ``a tuple``."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        if len(text) <= 40:
            return text
    name = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    if isinstance(value, type):
        return name
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def as_call(name: str, value: object, such: str) -> str:
    """How to write a table as a call, ``name(key=value)``; ``name(such)`` for what is no table of plain names."""
    if isinstance(value, Mapping) and value and all(isinstance(k, str) and k.isidentifier() for k in value):
        text = f"{name}({', '.join(f'{k}={v!r}' for k, v in value.items())})"
        if len(text) <= 120:
            return text
    return f"{name}({such})"


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _check_call(
    what: str, parameters: Sequence[inspect.Parameter], args: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    keys = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in options:
            if key not in keys:
                raise ArgumentError(f"{what}: unknown argument {key!r}; {nearest_key(key, keys)}") from None
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(places) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        by_name = ", ".join(k for k in keys if k not in places and k not in options)
        rest = f"; give {by_name} by name" if by_name else ""
        raise ArgumentError(
            f"{what}: got {len(args)} arguments without a name, expected at most {len(places)}"
            f" ({', '.join(places)}){rest}"
        ) from None
    given = {*places[: len(args)], *options}
    missing = [p.name for p in parameters if p.name in {*keys, *places} - given and p.default is p.empty]
    if missing:
        raise ArgumentError(f"{what}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing") from None
    twice = [k for k in options if k in places[: len(args)]]
    if twice:
        raise ArgumentError(f"{what}: {twice[0]} is given twice, once without its name") from None
