"""The page of each method, made of its class and its module's notes when the documentation is built."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from fedfi import registry
from fedfi.cli.tables import as_markdown, keys_of, markdown_table
from fedfi.personal.replica import around
from fedfi.validation import as_toml

FOLDER = "algorithms"
INDEX = f"{FOLDER}/index.md"

_FAMILIES: dict[str, tuple[str, list[str], str]] = {
    "averaging": ("Averaging", [], "results.md"),
    "submodel": ("Submodels", ["submodels.md", "fedfibos.md"], "claims.md#fedfibos"),
    "oneshot": ("One-shot merging", ["oneshot.md"], "claims.md#fedfiot"),
    "personal": ("Personal and encrypted", ["personal.md"], "claims.md#fedfihe"),
    "recsys": ("Recommendation", ["recommendation.md"], "claims.md#fedrkg"),
}
"""Title, guides, and where what was measured stands, by family."""


def page_of(name: str) -> str:
    """Where the page of a method is, within the documentation."""
    return f"{FOLDER}/{name}.md"


def pages() -> dict[str, str]:
    """All pages in Markdown, by where they are: one of each method, and the list of them."""
    return {INDEX: _index()} | {page_of(name): page(name) for name in registry.entries()}


def sections() -> list[dict[str, list[str]]]:
    """What stands in the navigation: a section of each family, its guides before its methods."""
    return [
        {title: [*guides, *(page_of(name) for name, e in registry.entries().items() if e.family == family)]}
        for family, (title, guides, _) in _FAMILIES.items()
    ]


def page(name: str) -> str:
    """The page of a method, in Markdown.

    Args:
        name: A name of `fedfi list algorithms`.
    """
    entry, kind = registry.entries()[name], registry.algorithm(name)
    title, guides, results = _FAMILIES[entry.family]
    guide = f" ([guide](../{guides[0]}))" if guides else ""
    about = [
        ("paper", as_markdown(entry.paper)),
        ("family", title + guide),
        ("in Python", f"`{kind.__module__}.{kind.__qualname__}`"),
        ("measured", f"[results](../{results})"),
    ]
    parts = [
        f"# {name}\n\n{as_markdown(entry.summary)}.\n",
        "| | |\n|---|---|\n" + "".join(f"| {key} | {value} |\n" for key, value in about),
        f'```toml\n[algorithm]\nname = "{name}"\n```\n',
        "## Options\n\nKeys of the table `[algorithm]`, arguments of the class in Python.\n",
        markdown_table(key.row() for key in keys_of(kind)),
        *_presets(kind),
        *_around(kind),
        f"## Paper, equations, deviations\n\n{as_markdown(_notes(kind))}\n",
    ]
    return "\n".join(parts)


def _index() -> str:
    parts = ["# All methods\n\n`fedfi list algorithms` prints the same, `fedfi show NAME --paper` a method's page.\n"]
    for family, (title, guides, _) in _FAMILIES.items():
        guide = f"[The guide](../{guides[0]}) tells which to take.\n\n" if guides else ""
        rows = [
            f"| [`{name}`]({name}.md) | {as_markdown(e.summary)} | {as_markdown(e.paper)} |\n"
            for name, e in registry.entries().items()
            if e.family == family
        ]
        parts.append(f"## {title}\n\n{guide}| method | | paper |\n|---|---|---|\n{''.join(rows)}")
    return "\n".join(parts)


def _presets(kind: type[Any]) -> list[str]:
    chosen = {
        preset: ", ".join(f"`{key} = {as_toml(value)}`" for key, value in values.items())
        for preset, values in kind.presets.items()
    }
    return [f'`preset = "{preset}"`: {values}\n' for preset, values in chosen.items()]


def _around(kind: type[Any]) -> list[str]:
    tables = ", ".join(f"`[algorithm.{name}]`" for name in around(kind))
    if not tables:
        return []
    return [f"It is linear, so {tables} may stand [around it](../personal.md#encrypted-baselines-and-wrappers).\n"]


def _notes(kind: type[Any]) -> str:
    return inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
