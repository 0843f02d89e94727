"""The page in a real Chromium: nothing is loaded, nothing overlaps, everything is legible and reachable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import FLAGS, FOCUSED, MISPLACED, MISSED, PALE, REACHABLE, SETTLED, chromium
from tests.report.made import everything

from fedfi.report import write_report

pytest.importorskip("plotly")
pytest.importorskip("playwright", reason="Python's playwright drives the browser: pip install 'fedfi[dev]'")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium() is None,
        reason="no Chromium found: install one (Debian: apt-get install chromium), or name it in FEDFI_CHROMIUM",
    ),
]
THEMES = ("light", "dark")
WIDTHS = (390, 900, 1440)
_PATIENCE = 300_000  # milliseconds: a machine that is busy is slow, not broken


@dataclass
class Opened:
    """A page that is open, and what happened to it."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("report")
    for name in ("fedavg", "fedfibos"):
        for seed in (0, 1):
            everything(folder / "runs" / name / f"seed-{seed}", seed, name, plain=name == "fedavg")
    path = write_report([folder / "runs"], folder / "page.html")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS), timeout=_PATIENCE)
        page = browser.new_page(viewport={"width": WIDTHS[-1], "height": 900}, color_scheme="light")
        page.set_default_timeout(_PATIENCE)
        found = Opened(page)
        page.on("console", lambda m: found.messages.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: found.messages.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        yield found
        browser.close()


def test_layout(opened: Opened) -> None:
    for width in WIDTHS:
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.page.wait_for_function(SETTLED)
        assert opened.page.evaluate(MISPLACED) == [], width


@pytest.mark.parametrize("theme", THEMES)
def test_contrast(opened: Opened, theme: str) -> None:
    opened.page.emulate_media(color_scheme=theme)
    back = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[theme]
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == back
    pale = opened.page.evaluate(PALE)
    assert pale["seen"]["text"] > 200
    assert pale["seen"]["lines"] > 20
    assert pale["found"] == []


def test_everything_is_reached_by_the_tab_key(opened: Opened) -> None:
    page = opened.page
    page.evaluate("document.activeElement.blur()")
    for _ in range(page.evaluate(REACHABLE)):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUSED)
        assert focus["outlined"], focus["name"]
    assert page.evaluate(MISSED) == []


@pytest.mark.parametrize(("kind", "begins"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"series,round,value\n")])
def test_downloads_by_keyboard(opened: Opened, tmp_path: Path, kind: str, begins: bytes) -> None:
    button = opened.page.locator(f'[data-of="0"][data-as="{kind}"]')
    button.focus()
    with opened.page.expect_download() as waiting:
        opened.page.keyboard.press("Enter")
    assert waiting.value.suggested_filename == f"global-model-accuracy.{kind}"
    waiting.value.save_as(tmp_path / "saved")
    content = (tmp_path / "saved").read_bytes()
    assert content.startswith(begins)
    if kind == "csv":
        names = {line.rsplit(b",", 2)[0] for line in content.splitlines()[1:]}
        both = ("fedavg", "fedfibos")
        edges = {f'"{name}, {which} seed"'.encode() for name in both for which in ("highest", "lowest")}
        assert names == {name.encode() for name in both} | edges


def test_on_paper(opened: Opened) -> None:
    """Light, unfolded, and no chart wider than its column, even from a dark screen."""
    page = opened.page
    page.emulate_media(color_scheme="dark", media="print")
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 within its margins
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = false; })")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(MISPLACED) == []
    assert page.evaluate(PALE)["found"] == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(color_scheme="light", media="screen")


def test_nothing_was_loaded_and_nothing_went_wrong(opened: Opened) -> None:
    """Last, so that it has seen all of the above."""
    assert opened.messages == []
    assert [r for r in opened.requests if not r.startswith(("file:", "data:", "blob:"))] == []
    assert sum(r.startswith("file:") for r in opened.requests) == 1
