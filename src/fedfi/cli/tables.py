"""The keys of validated tables, worded for a reader of files: type, default, description."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedfi import registry
from fedfi.validation import as_toml, fields_of


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        name: The key.
        type: What its values are, with bounds.
        default: Empty where there is none.
        description: What it means.
    """

    name: str
    type: str
    default: str
    description: str

    def row(self) -> tuple[str, str, str, str]:
        """The cells of a table."""
        return self.name, self.type, self.default, self.description


_SPAN = re.compile(r"(`+[^`]+`+)")
HEADS = ("key", "type", "default", "description")
plain = as_toml


def markdown_table(rows: Iterable[Sequence[str]]) -> str:
    """Keys as a table in Markdown.

    Args:
        rows: What `Key.row` gives.
    """
    lines = [
        [f"`{key}`", _code(kind), _code(default) if default != "required" else "*required*", as_markdown(text, "|")]
        for key, kind, default, text in rows
    ]
    if not lines:
        return "No keys.\n"
    cells = [["key", "type", "default", "meaning"], ["---"] * 4, *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def as_markdown(text: str, special: str = "") -> str:
    """Text as Markdown: outside of code, what looks like a tag of HTML is none, and special characters are plain."""
    parts = _SPAN.split(text)
    for number in range(0, len(parts), 2):
        parts[number] = parts[number].replace("<", "&lt;")
        for character in special:
            parts[number] = parts[number].replace(character, f"\\{character}")
    return "".join(parts)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def keys_of(kind: Any) -> list[Key]:
    """The keys of a validated dataclass or model."""
    hints = typing.get_type_hints(kind)
    found = []
    for name, field in fields_of(kind).items():
        default = "required" if field.is_required() else as_toml(field.get_default(call_default_factory=True))
        text = type_name(hints.get(name, field.annotation)) + _bounds(field.metadata)
        found.append(Key(name, text, default, field.description or ""))
    return found


def model_keys(name: str) -> list[Key]:
    """The options of a model, by name."""
    from fedfi.models import documented, options

    found, told = [], documented(name)
    for parameter in options(name):
        default = "required" if parameter.default is parameter.empty else as_toml(parameter.default)
        annotation = parameter.annotation
        metadata = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is typing.Annotated else ()
        inner = [m for item in metadata for m in getattr(item, "metadata", [item])]
        description = next((m.description for m in metadata if getattr(m, "description", None)), "")
        description = description or told.get(parameter.name, "")
        text = "value" if annotation is parameter.empty else type_name(annotation)
        found.append(Key(parameter.name, text + _bounds(inner), default, description))
    return found


def data_keys(name: str) -> list[Key]:
    """The keys of table `[data]` that mean something for a data set, by name."""
    from fedfi.data import accepted
    from fedfi.data.recommendation import available as ratings
    from fedfi.data.settings import OF_RATINGS, Data

    if name in ratings():
        known = {*OF_RATINGS} - {"kind", "columns"}
    else:
        known = {"clients", "partition", "validation", "test_fraction", *accepted(name)}
    return [key for key in keys_of(Data) if key.name in known]


def tables() -> dict[str, tuple[str, list[Key]]]:
    """The tables of an experiment file but those that depend on a name: what each is for, and its keys."""
    from fedfi.data.settings import Data
    from fedfi.experiment import Model, Settings
    from fedfi.federation.algorithm import Algorithm
    from fedfi.federation.evaluation import Evaluate
    from fedfi.federation.task import Training

    inner = ("data", "model", "train", "algorithm", "evaluate", "compare")
    return {
        "experiment": (
            "What stands at the head of a file, before its tables.",
            [key for key in keys_of(Settings) if key.name not in inner],
        ),
        "data": ("Table [data]: which data, and how they are divided among clients.", keys_of(Data)),
        "model": ("Table [model]: which model; the keys of that one beside them.", keys_of(Model)),
        "train": (f"Table [train]: {_summary(Training)}", keys_of(Training)),
        "evaluate": (f"Table [evaluate]: {_summary(Evaluate)}", keys_of(Evaluate)),
        "algorithm": (
            "Table [algorithm]: which method; these keys, which all methods have, and those of that one.",
            [
                Key("name", "str", "required", "a method of `fedfi list algorithms`, or package.module:Class"),
                Key("preset", "str", "", "named settings of the method, which other keys replace"),
                *keys_of(Algorithm),
            ],
        ),
        "compare": (
            "Tables [compare.LABEL]: variants for `fedfi compare`. Any key of [algorithm] that differs, and these.",
            [
                Key("name", "str", "that of [algorithm]", "the variant's method"),
                Key("train", "table", "", "keys of [train] that differ"),
                Key("model", "table", "", "keys of [model] that differ"),
            ],
        ),
        **{f"algorithm.{name}": _wrapper(name) for name in registry.wrappers()},
    }


def _wrapper(name: str) -> tuple[str, list[Key]]:
    from fedfi.composing import options_of

    summary = registry.wrappers()[name].summary
    found = [key for key in keys_of(registry.wrapper(name)) if key.name in options_of(name)]
    return f"Table [algorithm.{name}], around the method: {summary[:1].lower()}{summary[1:]}.", found


def _summary(kind: type[Any]) -> str:
    line = (inspect.getdoc(kind) or "").split("\n")[0].split(" (table")[0].rstrip(".")
    return line[:1].lower() + line[1:] + "."


def type_name(annotation: Any) -> str:
    """A type as a reader of a file thinks of it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return " | ".join(as_toml(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_name(a) for a in arguments if a is not type(None))
    if origin is dict:
        return f"table of {type_name(arguments[0])} = {type_name(arguments[1])}"
    if origin in (list, tuple):
        inner = dict.fromkeys(type_name(a) for a in arguments if a is not Ellipsis)
        return f"list of {', '.join(inner)}"
    if dataclasses.is_dataclass(annotation):
        return "table"
    return str(getattr(annotation, "__name__", annotation)).replace("Any", "value")


def _bounds(metadata: Sequence[Any]) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    found = [f"{s} {getattr(m, n):g}" for m in metadata for n, s in signs.items() if getattr(m, n, None) is not None]
    return f", {', '.join(found)}" if found else ""
