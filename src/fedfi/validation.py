"""Checking tables against typed settings, and wording what is wrong in one line: key, value, nearest choice.

Tables are checked as JSON in pydantic's strict mode: a number in quotes is not a number and `true` is not 1,
while lists become tuples and the keys of a table become numbers where numbers are expected. Options in Python are held
to the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import math
import re
import types
from abc import ABCMeta
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedfi.errors import InputError, SettingError, nearest

T = TypeVar("T")
OPTIONS = ConfigDict(extra="forbid", strict=True)
"""The configuration of all classes of options: in Python, too, 1 is not true and a text is not a number."""
_MOST = (2 - 2**-23) * 2.0**127
"""The largest 32-bit floating-point number."""
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
_MISSING = {"missing", "missing_keyword_only_argument", "missing_argument"}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text in quotes",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "dataclass": "a table",
    "model": "a table",
}
_KINDS_IN_PYTHON = _KINDS | {"bool": "True or False", "string": "a text", "dict": "a dict"}
_OTHER_NAMES = {
    "lr": "learning_rate",
    "batch": "batch_size",
    "bs": "batch_size",
    "epoch": "epochs",
    "local_epochs": "epochs",
    "step": "steps",
    "local_steps": "steps",
    "wd": "weight_decay",
    "fraction": "participation",
    "sample_rate": "participation",
    "mu": "proximal",
    "num_clients": "clients",
    "n_clients": "clients",
    "num_rounds": "rounds",
}
"""What keys are called elsewhere, for "did you mean"."""


class Checked(ABCMeta):
    """The metaclass of validated dataclasses that users make in Python: what is wrong is one line, as in files."""

    def __call__(cls: type[T], *args: Any, **options: Any) -> T:
        """Makes an instance.

        Raises:
            InputError: In one line: class, key, value and the nearest valid choice.
        """
        check_decorated(cls)
        fields = fields_of(cls)
        if args:
            such = f", such as {next(iter(fields), 'key')} = {_in_python(args[0])}"
            raise InputError(f"{cls.__name__}: takes keyword arguments only{such}")
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise InputError(f"class {cls.__name__} is abstract: it lacks {', '.join(missing)}")
        if (presets := getattr(cls, "presets", None)) and "preset" in options and "preset" not in fields:
            near = _nearest(options["preset"], list(presets))
            raise InputError(
                f"{cls.__name__}: preset = {options['preset']!r}: is no option; write {cls.__name__}.preset({near!r})"
            )
        options = {key: _as_declared(value, fields.get(key)) for key, value in options.items()}
        for key, value in options.items():
            _check_given(value, cls.__name__, (key,))
        try:
            return super().__call__(**options)  # type: ignore[misc, no-any-return]
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {_first(error, cls, (), in_python=True)}") from error


def _as_declared(value: Any, field: FieldInfo | None) -> Any:
    """What Python has several kinds of, as the one that is declared: numpy's numbers, other mappings, lists."""
    if isinstance(value, Number) and hasattr(value, "item"):
        return value.item()
    kind = get_origin(field.annotation) if field is not None else None
    if kind in (tuple, list) and isinstance(value, tuple | list):
        return kind(value)
    if isinstance(value, Mapping):
        return {_as_declared(key, None): _as_declared(item, None) for key, item in value.items()}
    return value


def _check_given(value: Any, source: str, path: tuple[str, ...]) -> None:
    """Refuses numbers that are not finite, and keys that are truth values, in an option given in Python."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, bool):
                raise InputError(f"{source}: {dotted(path)}: the key {key} must be a number or a text")
            _check_number(key, source, path, "the key ")
            _check_given(item, source, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            _check_given(item, source, path)
    else:
        _check_number(value, source, path)


def check_decorated(kind: type[Any]) -> None:
    """Checks that every class that declares options is a validated dataclass, which reads them.

    Raises:
        InputError: Naming the class and the options that would be ignored.
    """
    for cls in kind.__mro__:
        if isinstance(cls, Checked) and "__dataclass_fields__" not in vars(cls):
            fields = [k for k, v in inspect.get_annotations(cls).items() if "ClassVar" not in str(v)]
            if fields:
                raise InputError(
                    f"class {cls.__name__} declares {', '.join(fields)}, but nothing reads them: put @fedfi.method"
                    " above the class (and annotate what is no option as ClassVar)"
                )


def validate(
    kind: type[T], table: Any, *, source: str = "", path: Sequence[str] = (), context: Mapping[str, Any] | None = None
) -> T:
    """Makes an object of a validated dataclass or model out of a table, or a value of any type out of a plain one.

    Args:
        kind: The class or type.
        table: The settings.
        source: Where they come from, such as the name of a file; without one, the error starts with the key.
        path: Keys that lead to the table.
        context: What its validators may take that no file can hold.

    Raises:
        InputError: In one line: source, key, value, what is expected, the nearest valid value, and how many
            more errors there are.
    """
    check_plain(table, source=source, path=path)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(table), strict=True, context=context)
    except ValidationError as error:
        raise _error(source, _first(error, kind, path)) from error


def _first(error: ValidationError, kind: Any, path: Sequence[str], *, in_python: bool = False) -> str:
    """The error that says most in words, and how many more there are."""
    # A misspelt key is missing and unknown; the unknown one says more.
    found = error.errors(include_url=False)
    entries = {e["loc"][:-1] for e in found}  # pydantic counts the right ones: wrong entries leave a list too short
    found = [e for e in found if e["type"] != "too_short" or e["loc"] not in entries]
    first, *others = sorted(found, key=lambda e: e["type"] not in _UNKNOWN)
    text = _worded(first, kind, path, in_python)
    if first["type"] in _MISSING:
        missing = [e for e in others if e["type"] in _MISSING]
        others = [e for e in others if e["type"] not in _MISSING]
        if missing:
            text = f"{', '.join(dotted([*path, *e['loc']]) for e in (first, *missing))}: are missing"
    if first["type"] in _UNKNOWN:  # what was meant by it is not missing
        meant = _meant(first, kind)
        others = [e for e in others if e["type"] not in _MISSING or e["loc"] != meant]
    return text + (f" (and {len(others)} more error{'' if len(others) == 1 else 's'})" if others else "")


def _meant(error: Any, root: Any) -> tuple[Any, ...]:
    """Where an unknown key would lie, had it the name that is nearest."""
    location = [part for part in error["loc"] if part != "[key]"]
    near = _near_key(str(location[-1]), sorted(fields_of(_field(root, location)[0])))
    return (*error["loc"][:-1], *near)


def _error(source: str, text: str) -> InputError:
    return InputError(f"{source}: {text}") if source else SettingError(text)


def check_plain(value: Any, *, source: str = "", path: Sequence[str] = ()) -> None:
    """Refuses what no setting can be: dates, and numbers that are not finite, in 32 bits or at all."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_plain(item, source=source, path=(*path, str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            check_plain(item, source=source, path=path)
    elif not isinstance(value, bool | int | float | str):
        raise _error(source, f"{dotted(path)} = {value}: a {type(value).__name__} is not expected anywhere")
    else:
        _check_number(value, source, path)


def _check_number(value: Any, source: str, path: Sequence[str], what: str = "") -> None:
    key = f"{dotted(path)}: {what}{value}" if what else f"{dotted(path)} = {value}"
    if isinstance(value, float) and math.isnan(value):
        raise _error(source, f"{key}: is not a number; must be a finite number")
    if isinstance(value, float) and math.isinf(value):
        raise _error(source, f"{key}: must be a finite number")
    if isinstance(value, float) and abs(value) > _MOST:  # tensors hold 32 bits
        raise _error(source, f"{key}: must be at most {_MOST:.4g} in size, as 32-bit numbers are")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        near = max(-(2**63), min(value, 2**63 - 1))
        raise _error(source, f"{dotted(path)} = {shown(value)}: must be a 64-bit whole number (nearest valid: {near})")


def is_plain(value: Any) -> bool:
    """Whether a value is one that a file can hold."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float | str)


def dotted(path: Iterable[object]) -> str:
    """A key as TOML writes it: ``algorithm.capacities."0.5"``."""
    parts = [str(p) for p in path]
    return ".".join(p if re.fullmatch(r"[\w-]+", p) else json.dumps(p) for p in parts)


def shown(value: Any) -> str:
    """A value as TOML writes it, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _in_python(value: Any) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_toml(value: Any) -> str:
    """A value as TOML writes it in one line; empty for none."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_bare(str(k))} = {as_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, default=str)


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][\w-]*", key) else json.dumps(key)


def fields_of(kind: Any) -> dict[str, FieldInfo]:
    """The fields of a validated dataclass or model, by name; none for anything else."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return dict(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        return dict(getattr(kind, "__pydantic_fields__", {}))
    if get_origin(kind) in (Union, types.UnionType):
        return {name: field for part in get_args(kind) for name, field in fields_of(part).items()}
    return {}


def _worded(error: Any, root: Any, path: Sequence[str], in_python: bool) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    location = [part for part in error["loc"] if part != "[key]"]
    key = dotted([*path, *location])
    container, field = _field(root, location)
    if kind in _UNKNOWN:
        return f"{key}: unknown key; {nearest_key(str(location[-1]), sorted(fields_of(container)))}"
    if kind in _MISSING:
        return f"{key}: is missing"
    if kind == "value_error":
        return f"{key}: {context['error']}" if key else str(context["error"])
    name = "the key must be" if "[key]" in error["loc"] else "must be"
    if isinstance(value, float) and math.isnan(value):
        return f"{key} = nan: {'the key ' if '[key]' in error['loc'] else ''}is not a number"
    given = _in_python(value) if in_python else shown(value)
    kinds = _KINDS_IN_PYTHON if in_python else _KINDS
    return f"{key} = {given}: {_reason(kind, context, value, field, error['msg'], name, kinds)}"


def _reason(
    kind: str,
    context: Mapping[str, Any],
    value: Any,
    field: FieldInfo | None,
    message: str,
    must: str,
    kinds: Mapping[str, str],
) -> str:
    if kind in ("less_than_equal", "greater_than_equal"):
        word, bound = ("at most", context["le"]) if "le" in context else ("at least", context["ge"])
        return f"{must} {word} {_number(bound)} (nearest valid: {_number(bound)})"
    if kind in ("less_than", "greater_than"):
        word, bound = ("below", context["lt"]) if "lt" in context else ("above", context["gt"])
        default = field.get_default() if field is not None else None
        default = field.examples[0] if field is not None and field.examples else default
        such = f", such as {_number(default)}" if isinstance(default, int | float) else ""
        return f"{must} {word} {_number(bound)} (nearest valid: any number {word} {_number(bound)}{such})"
    if kind == "literal_error":
        choices = [a or int(b) for a, b in re.findall(r"'([^']*)'|(-?\d+)", context["expected"])]
        return f"{must} {context['expected']} (nearest valid: {shown(_nearest(value, choices))})"
    if kind in ("too_short", "too_long"):
        word, bound = ("at least", context["min_length"]) if kind == "too_short" else ("at most", context["max_length"])
        return f"{must} of {word} {bound} entries, these are {context['actual_length']}"
    expected = kinds.get(kind.split("_")[0])
    if kind == "dict_type" and expected and field is not None and "->" in (field.description or ""):
        expected += f": {field.description}"
    if kind.endswith(("_type", "_parsing", "_from_float")) and expected:
        near = _converted(value) if kind.startswith(("int", "float")) else None
        if near is not None and kind.startswith("int"):
            near = round(near)
        if kind in ("list_type", "tuple_type") and field is not None and _is_entry(value, field):
            return f"{must} {expected} (nearest valid: {as_toml([value])})"
        if near is None and field is not None and field.examples:
            return f"{must} {expected}, such as {as_toml(field.examples[0])}"
        return f"{must} {expected}" + ("" if near is None else f" (nearest valid: {near})")
    return message.removeprefix("Input should be ").rstrip(".")


def _is_entry(value: Any, field: FieldInfo) -> bool:
    """Whether a list of nothing but this value would be right."""
    kind: Any = field.annotation
    try:
        TypeAdapter(kind).validate_json(json.dumps([value]), strict=True)
    except (ValueError, TypeError):  # pydantic's errors are values', too
        return False
    return True


def nearest_key(given: str, valid: Sequence[str]) -> str:
    """What to write instead of an unknown key: the nearest one, or all where none is near."""
    near = _near_key(given, valid)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(valid)}"


def _near_key(given: str, valid: Sequence[str]) -> list[str]:
    return [n for n in valid if n == _OTHER_NAMES.get(given)] or nearest(given, valid)


def _nearest(value: Any, choices: Sequence[Any]) -> Any:
    numbers, number = [c for c in choices if isinstance(c, int)], _converted(value)
    if isinstance(value, bool):
        number = float(value)
    if numbers and number is not None:
        return min(numbers, key=lambda c: abs(c - number))
    return (difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0) or list(choices))[0]


def _converted(value: Any) -> float | None:
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _field(root: Any, location: Sequence[object]) -> tuple[Any, FieldInfo | None]:
    """The class that a location's last key belongs to, and its field if there is one."""
    container, field = root, None
    for i, part in enumerate(location):
        field = fields_of(container).get(str(part))
        if i < len(location) - 1:
            container = field.annotation if field is not None else None
    return container, field


def flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The entries of nested tables by dotted key."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, (*path, key))
        else:
            yield dotted((*path, key)), value
