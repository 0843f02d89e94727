"""Pieces of the page: text is escaped here, and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from fedfi.federation.record import finite
from fedfi.report import figures as fig
from fedfi.report.view import Picture

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src {}"
)
_TOOLS = (("svg", "SVG"), ("png", "PNG"), ("csv", "CSV"))


class Page:
    """A page as it grows: its sections, and the figures that have places in them.

    Args:
        live: Whether it asks its server for news.
    """

    def __init__(self, *, live: bool = False) -> None:
        self._live = live
        self._sections: list[tuple[str, str]] = []
        self._figures: list[fig.Figure] = []

    def section(self, title: str, content: str) -> None:
        """Adds a section, unless it is empty."""
        if content:
            self._sections.append((title, content))

    def place(self, figures: Sequence[fig.Figure]) -> str:
        """Room for figures, which the page's script fills, each with its caption, its note and its downloads."""
        places = []
        for figure in figures:
            number, title = len(self._figures), figure["layout"]["title"]["text"]
            note = figure["layout"].get("meta", {}).get("note", "")
            tools = "".join(
                f'<button type="button" data-as="{kind}" data-of="{number}"'
                f' aria-label="{name}: {escape(title)}">{name}</button>'
                for kind, name in _TOOLS
            )
            below = f'<p class="note">{escape(note)}</p>' if note else ""
            places.append(
                f'<figure class=figure><div class="top"><figcaption>{escape(title)}</figcaption>'
                f'<div class="tools">{tools}</div></div>'
                f'<div data-figure="{number}" role="img" aria-label="{escape(title)}"></div>{below}</figure>'
            )
            self._figures.append(figure)
        return f"<div class=grid>{''.join(places)}</div>" if places else ""

    def text(self, title: str, script: str) -> str:
        """The whole page.

        Args:
            title: Plain text.
            script: Plotly's JavaScript.
        """
        links, parts = "", ""
        for number, (heading, content) in enumerate(self._sections):
            name = f"{number}-{slug(heading)}"
            links += f'<li><a href="#{name}">{escape(heading)}</a></li>'
            parts += f'<section id="{name}"><h2>{escape(heading)}</h2>{content}</section>'
        contents = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else ""
        data = _json(finite(self._figures))
        dark = _json(dict(zip(fig.COLOURS, fig.DARK, strict=True)))
        policy = _POLICY.format("'self'" if self._live else "'none'")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<title>fedfi: {escape(title)}</title><style>{_own('page.css')}</style></head>"
            f"<body{' data-live' * self._live}>"
            f"<main><h1>{escape(title)}</h1>{contents}{parts}"
            "<noscript><p>Charts need JavaScript; tables do not.</p></noscript></main><script>"
            f'{script}</script><script type="application/json" id="figures">{data}</script>'
            f'<script type="application/json" id="dark">{dark}</script><script>{_own("page.js")}</script>'
            "</body></html>\n"
        )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table, which scrolls by itself where the page is too narrow.

    Args:
        heads: Of its columns.
        rows: Plain text.
        name: What it is about, for those who hear it.
    """
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, small: str, content: str) -> str:
    """Something that is folded away; its content is HTML."""
    more = f" <small>{escape(small)}</small>" if small else ""
    return f"<details><summary>{escape(summary)}{more}</summary>{content}</details>"


def code(text: str, name: str) -> str:
    """Text as it stands."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(name)}">{escape(text)}</pre>'


def paragraph(text: str) -> str:
    """A paragraph of plain text; nothing where there is none."""
    return f"<p>{escape(text)}</p>" if text else ""


def pictures(groups: Sequence[tuple[str, Sequence[Picture]]]) -> str:
    """Groups of pictures, each with its caption."""
    shown = ""
    for caption, group in groups:
        images = "".join(f'<img alt="{escape(p.text)}" src="{escape(p.source)}">' for p in group)
        shown += f'<figure class="pair">{images}<figcaption>{escape(caption)}</figcaption></figure>'
    return f'<div class="pairs">{shown}</div>' if shown else ""


def slug(text: str) -> str:
    """A text as a name in an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False).replace("</", "<\\/")


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
