"""`fedfi list` and `fedfi show`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fedfi import registry
from fedfi.cli import tables as keys
from fedfi.data.partition import kinds
from fedfi.errors import InputError, unknown
from fedfi.importing import import_callable
from fedfi.personal.replica import around
from fedfi.validation import Checked, as_toml

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


def show_all(what: str, as_json: bool, family: str | None = None) -> None:
    """Prints all names of a kind, a line each: on a terminal cut to its width, elsewhere name, tab, summary.

    Args:
        what: The kind.
        as_json: Print all that is known of each.
        family: Only the methods of this family.

    Raises:
        InputError: If there is no such kind or family.
    """
    if what not in _LISTS:
        raise InputError(unknown("list", what, _LISTS))
    rows = _LISTS[what]()
    if family is not None:
        families = list(dict.fromkeys(row["family"] for row in rows))
        if what != "algorithms":
            raise InputError(f"--family {family}: only algorithms have families (fedfi list algorithms --family NAME)")
        if family not in families:
            raise InputError(f"--family: {unknown('family', family, families)}")
        rows = [row for row in rows if row["family"] == family]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    console = _console()
    width = max(len(row["name"]) for row in rows)
    before = rows[0]["family"] if what != "algorithms" else ""
    for row in rows:
        if row["family"] != before:
            print(("\n" if before else "") + row["family"])
            before = row["family"]
        if console.is_terminal:
            line = f"{'  ' * (what == 'algorithms')}{row['name']:{width}}  {row['summary']}"
            print(
                line if len(line) <= console.width else f"{line[: console.width - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
            )
        else:
            print(f"{row['name']}\t{row['summary']}")


def show_one(name: str, paper: bool = False) -> None:
    """Prints all about a method, a data set, a model, a partition or a table of a file.

    Args:
        name: A name of `fedfi list`, a table such as ``"train"``, or ``"package.module:name"`` of your own.
        paper: Print a method's notes on its paper, too.

    Raises:
        InputError: If nothing is called so.
    """
    if name in registry.entries():
        _show_algorithm(name, registry.algorithm(name), paper)
        return
    if ":" in name and not name.startswith("medmnist:"):
        _show_own(name, paper)
        return
    names = list(registry.entries())
    for kind in ("datasets", "models", "partitions"):
        rows = {row["name"]: row for row in _LISTS[kind]()}
        if name in rows or (kind == "datasets" and name.startswith("medmnist:")):
            _show_row(rows[name if name in rows else "medmnist:NAME"])
            return
        names += rows
    tables = keys.tables()
    wanted = name.strip("[]")
    table = wanted if wanted in tables else f"algorithm.{wanted}"
    if table in tables:
        text, found = tables[table]
        _console().print(text, markup=False)
        if (wrapper := table.removeprefix("algorithm.")) in registry.wrappers():
            kind = registry.wrapper(wrapper).__name__
            _console().print(f"in Python: from fedfi import {kind}; {kind}(algorithm=...)", markup=False)
        _print_keys(found)
        return
    lists = f"fedfi list {'|'.join(_LISTS)}"
    raise InputError(unknown("name", name, [*names, *tables], lists) + ", or give package.module:name")


def _show_own(name: str, paper: bool) -> None:
    """A method or a model of the user's."""
    found = import_callable(name, "name")
    if isinstance(found, Checked):
        _show_algorithm(name, registry.algorithm(name), paper)
    elif isinstance(found, type):
        registry.algorithm(name)  # which says what is wrong with it
    else:
        summary = (inspect.getdoc(found) or "").partition("\n\n")[0]
        _show_row({"name": name, "family": "model", "summary": summary, "paper": ""})


def _show_algorithm(name: str, kind: type[Any], paper: bool) -> None:
    from rich.markdown import Markdown

    console = _console()
    console.print(f"[bold]{name}[/bold]  {kind.__module__}:{kind.__qualname__}")
    home = "fedfi" if kind.__name__ in registry.classes() and name in registry.entries() else kind.__module__
    console.print(f"in Python: from {home} import {kind.__name__}", markup=False)
    if name in registry.entries():
        entry = registry.entries()[name]
        console.print(f"{entry.summary}\nfamily: {entry.family}\npaper: {entry.paper}", markup=False)
    elif kind.__doc__:
        console.print(inspect.cleandoc(kind.__doc__), markup=False)
    _print_keys(keys.keys_of(kind), title="\\[algorithm]")
    if wrappers := around(kind):
        tables, shown = (", ".join(f(name) for name in wrappers) for f in ("[algorithm.{}]".format, str))
        console.print(f"\nlinear, so that {tables} may stand around it: fedfi show {shown}", markup=False)
    for preset, values in kind.presets.items():
        chosen = ", ".join(f"{k} = {as_toml(v)}" for k, v in values.items())
        console.print(f'\n[bold]preset = "{preset}"[/bold]: {chosen}', soft_wrap=False)
    notes = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
    if paper and notes:
        console.print()
        console.print(Markdown(notes))
    elif notes:
        console.print(f"\nEquations, and deviations from the paper: fedfi show {name} --paper", markup=False)


def _show_row(row: Row) -> None:
    _console().print(f"[bold]{row['name']}[/bold] ({row['family']})\n{row['summary']}")
    found: list[keys.Key] = []
    if row["family"] == "dataset":
        found = keys.data_keys(row["name"])
    elif row["family"] == "model":
        found = keys.model_keys(row["name"])
    elif row["family"] == "partition":
        found = [key for key in keys.keys_of(kinds()[row["name"]]) if key.name != "by"]
    _print_keys(found)


def _print_keys(found: list[keys.Key], title: str | None = None) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not found:
        return
    console = _console()
    table = Table(*keys.HEADS, title=title, title_justify="left", box=None)
    for key in found:
        table.add_row(*map(escape, key.row()))
    console.print()
    console.print(table)


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)
