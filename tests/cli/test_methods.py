"""Every method has a page, which is made of what its code says."""

from __future__ import annotations

import re

import pytest

from fedfi import registry
from fedfi.cli.methods import INDEX, page, page_of, pages, sections
from fedfi.validation import fields_of


@pytest.mark.parametrize("name", registry.entries())
def test_a_page_has_paper_options_and_deviations(name: str) -> None:
    text = page(name)
    assert text.startswith(f"# {name}\n")
    entry = registry.entries()[name]
    assert entry.summary in text
    assert f"| paper | {entry.paper} |" in text
    options, _, notes = text.partition("## Paper, equations, deviations")
    for key in fields_of(registry.algorithm(name)):
        assert f"| `{key}` | `" in options, key
    for preset in registry.algorithm(name).presets:
        assert f'`preset = "{preset}"`' in options
    assert re.search("deviat", notes, re.IGNORECASE), "the module's docstring says how far it departs from the paper"


def test_what_looks_like_a_tag_is_none() -> None:
    assert "&lt;W_A, P W_B>" in page("rebasin")
    for text in pages().values():
        assert not re.search(r"<[A-Za-z/]", re.sub(r"`+[^`]+`+", "", text))


def test_bars_are_plain_in_code_and_escaped_elsewhere() -> None:
    """As Python-Markdown has it: a bar within code ends no cell, and a backslash there is shown."""
    text = page("fedfibos")
    assert '| `score` | `"fisher" | "fisher2x2" | "magnitude"` | `"fisher"` | what' in text
    assert "or \\|x\\|" in text


def test_all_pages_are_listed_and_in_the_navigation() -> None:
    made = pages()
    shown = [where for section in sections() for places in section.values() for where in places]
    for name in registry.entries():
        assert f"[`{name}`]({name}.md)" in made[INDEX]
        assert shown.count(page_of(name)) == 1
    assert set(made) == {INDEX, *map(page_of, registry.entries())}
