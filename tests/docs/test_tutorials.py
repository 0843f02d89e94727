"""Every tutorial is followed to the letter, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.blocks import ROOT, Reader

PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
NEEDS = {"encrypted.md": "tenseal", "flower.md": "flwr"}


@pytest.fixture(autouse=True)
def _an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FEDFI_MEMORY", str(tmp_path / "memory"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_it_does_what_it_says(page: Path) -> None:
    pytest.importorskip("plotly")  # every run ends with a report
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    Reader(page).follow()


@pytest.mark.system
def test_the_federation_of_processes_does_what_it_says() -> None:
    pytest.importorskip("flwr")
    from fedfi.cli import main

    try:
        Reader(ROOT / "docs/tutorials/flower.md", marks=frozenset({"system"})).follow()
    finally:
        main(["flower", "down"])
