"""`fedfi list` and `fedfi show`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fedfi import registry
from fedfi.errors import InputError, unknown

Row = dict[str, str]


def _algorithms() -> list[Row]:
    return [
        {"name": name, "family": e.family, "summary": e.summary, "paper": e.paper}
        for name, e in registry.entries().items()
    ]


def _datasets() -> list[Row]:
    from fedfi.data import available
    from fedfi.data.recommendation import available as ratings

    return _rows("dataset", available() | ratings())


def _models() -> list[Row]:
    from fedfi.models import available

    return _rows("model", available())


def _partitions() -> list[Row]:
    from fedfi.data import partitions

    return _rows("partition", partitions())


def _rows(family: str, summaries: Mapping[str, str]) -> list[Row]:
    return [{"name": n, "family": family, "summary": s, "paper": ""} for n, s in summaries.items()]


_LISTS: dict[str, Callable[[], list[Row]]] = {
    "algorithms": _algorithms,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
}


def show_all(what: str, as_json: bool) -> None:
    """Prints all names of a kind.

    Raises:
        InputError: If there is no such kind.
    """
    if what not in _LISTS:
        raise InputError(unknown("list", what, _LISTS))
    rows = _LISTS[what]()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    from rich.table import Table

    columns = [c for c in ("name", "family", "summary", "paper") if c in ("name", "summary") or what == "algorithms"]
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(row[c] for c in columns))
    _console().print(table)


def show_one(name: str) -> None:
    """Prints all about a method, a data set, a model or a partition.

    Raises:
        InputError: If nothing is called so.
    """
    if name in registry.entries() or ("." in name and ":" in name):
        _show_algorithm(name)
        return
    names = list(registry.entries())
    for kind in ("datasets", "models", "partitions"):
        rows = {row["name"]: row for row in _LISTS[kind]()}
        if name in rows:
            _show_row(rows[name])
            return
        names += rows
    raise InputError(unknown("name", name, names))


def _show_algorithm(name: str) -> None:
    from rich.markdown import Markdown
    from rich.table import Table

    kind = registry.algorithm(name)
    console = _console()
    console.print(f"[bold]{name}[/bold]  {kind.__module__}:{kind.__qualname__}")
    if name in registry.entries():
        entry = registry.entries()[name]
        console.print(f"family: {entry.family}\npaper: {entry.paper}\n")
    console.print(Markdown(inspect.cleandoc(sys.modules[kind.__module__].__doc__ or kind.__doc__ or "")))
    table = Table("key", "type", "default", "description", title="\\[algorithm]", title_justify="left", box=None)
    hints = typing.get_type_hints(kind)
    for key, field in kind.__pydantic_fields__.items():
        default = "" if field.is_required() else _plain(field.get_default(call_default_factory=True))
        kind_text = _type_name(hints.get(key, field.annotation)) + _bounds(field.metadata)
        table.add_row(key, kind_text, default, field.description or "")
    console.print()
    console.print(table)
    for preset, keys in kind.presets.items():
        values = ", ".join(f"{k} = {_plain(v)}" for k, v in keys.items())
        console.print(f'\n[bold]preset = "{preset}"[/bold]: {values}', soft_wrap=False)


def _show_row(row: Row) -> None:
    from rich.table import Table

    console = _console()
    console.print(f"[bold]{row['name']}[/bold] ({row['family']})\n{row['summary']}")
    options = _options(row)
    if not options:
        return
    table = Table("key", "type", "default", "description", box=None)
    for option in options:
        table.add_row(*option)
    console.print()
    console.print(table)


def _options(row: Row) -> list[tuple[str, str, str, str]]:
    if row["family"] == "dataset":
        from fedfi.experiment import Data

        return [
            (
                k,
                _type_name(f.annotation),
                _plain(f.get_default(call_default_factory=True)),
                f.description or "",
            )
            for k, f in Data.model_fields.items()
            if k != "name"
        ]
    if row["family"] == "model":
        return _model_options(row["name"])
    return []


def _model_options(name: str) -> list[tuple[str, str, str, str]]:
    from fedfi.models import options

    return [
        (p.name, _type_name(p.annotation), "" if p.default is p.empty else _plain(p.default), "") for p in options(name)
    ]


def _type_name(annotation: Any) -> str:
    """A type as a reader of a file thinks of it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin is typing.Literal:
        return " | ".join(_plain(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_name(a) for a in arguments if a is not type(None))
    if origin is dict:
        return f"table of {_type_name(arguments[0])} = {_type_name(arguments[1])}"
    if origin in (list, tuple):
        inner = dict.fromkeys(_type_name(a) for a in arguments if a is not Ellipsis)
        return f"list of {', '.join(inner)}"
    if dataclasses.is_dataclass(annotation):
        return "table"
    return str(getattr(annotation, "__name__", annotation)).replace("Any", "value")


def _bounds(metadata: list[Any]) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    found = [f"{s} {getattr(m, n):g}" for m in metadata for n, s in signs.items() if hasattr(m, n)]
    return f", {', '.join(found)}" if found else ""


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {_plain(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, default=str)


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)
