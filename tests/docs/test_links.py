"""Links between pages lead somewhere, to the heading, and every page is in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.blocks import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
MADE = re.compile(r"(algorithms/[\w-]+|reference)\.md")
"""Pages that are made when the documentation is built."""


def without_code(page: Path) -> str:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "code", text)


def anchors(page: Path) -> set[str]:
    """Of the headings, as Python-Markdown makes them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", h.replace("`", "").encode("ascii", "ignore").decode()) for h in headings)
    return {re.sub(r"[-\s]+", "-", h.strip().lower()) for h in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"\w+:", target):
            continue
        where, _, anchor = target.partition("#")
        if MADE.fullmatch(where):
            continue
        there = (page.parent / where).resolve() if where else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_page_is_in_the_navigation() -> None:
    shown = (ROOT / "mkdocs.yml").read_text() + (ROOT / "src/fedfi/cli/methods.py").read_text()
    for page in DOCS.rglob("*.md"):
        assert str(page.relative_to(DOCS)) in shown, page
