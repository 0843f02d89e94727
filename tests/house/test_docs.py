"""The documentation's snippets: a formatter of Python in Markdown once made an expression of their marker."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SCISSORS = re.compile(r"-+\s*8\s*<\s*-+")
SNIPPET = re.compile(r"^--8<--\n(?P<lines>(?:(?!--8<--).+\n)+)--8<--$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_markers_of_snippets_are_whole_and_name_a_part_of_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for found in SNIPPET.finditer(text):
        for line in found["lines"].splitlines():
            name, _, section = line.partition(":")
            source = (ROOT / name).read_text(encoding="utf-8")
            assert f"--8<-- [start:{section}]" in source, line
            assert f"--8<-- [end:{section}]" in source, line
    assert not SCISSORS.search(SNIPPET.sub("", text)), (
        "a broken marker, or one of a single line, which formatters break"
    )


def test_no_formatter_takes_a_marker_for_python() -> None:
    markers = [found[0] for page in PAGES for found in SNIPPET.finditer(page.read_text(encoding="utf-8"))]
    assert markers
    for marker in markers:
        with pytest.raises(SyntaxError):
            ast.parse(marker)


@pytest.mark.parametrize("broken", ['--8 < --"a.py:b"', '--8<-- "a.py:b"', "-- 8<--"])
def test_a_broken_marker_is_seen(broken: str) -> None:
    assert SCISSORS.search(SNIPPET.sub("", broken))
