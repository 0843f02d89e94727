"""Figures as plotly takes them, traces and a layout: what all of them are made of.

The colours of axes and text come with the page, which also puts the colours of dark pages in place of these. What a
figure means is its note, ``layout.meta.note``; its caption is ``layout.title.text``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedfi.report.reading import RunRecord

Figure = dict[str, Any]

COLOURS = ("#2f6bcc", "#b8560f", "#1a7f5a", "#b83370", "#7a52c7", "#806b0c", "#19788e", "#c43c3c")
"""On light pages; each is told from the card behind it by a contrast of 3 or more."""
DARK = ("#6d9eea", "#f0964f", "#4cc295", "#e878a8", "#b08ff0", "#d6bd4a", "#5cc3db", "#f07a7a")
"""The same on dark pages."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SCALE = [[0, COLOURS[0] + "0a"], [1, COLOURS[0]]]
_SHARE = ".0%"
_FEW_ROUNDS = 10
_MARKED = 3  # a line of fewer points shows them


def family(run: RunRecord, pattern: str, title: str, **options: Any) -> Figure | None:
    """One run's numbers whose keys match `pattern`, a line each, named by the pattern's group; options of `figure`."""
    keys: dict[str, str] = {}
    for metrics in run.metrics:
        keys |= {key: found[1] for key in metrics if (found := re.fullmatch(pattern, key))}
    ordered = sorted(keys, key=lambda k: by_level(keys[k]))
    traces = [
        line([(m["round"], m[key]) for m in run.metrics if key in m], keys[key], i) for i, key in enumerate(ordered)
    ]
    return figure(traces, title, "round", legend=len(traces) > 1, **options)


def line(points: Sequence[tuple[float, float]], name: str, number: int, **more: Any) -> dict[str, Any]:
    """A trace of a line; its colour and dashes are those of its number."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) < _MARKED else "lines",
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": colour(number), "width": 2, "dash": _DASHES[number % len(_DASHES)]},
        **more,
    }


def bars(x: Sequence[Any], y: Sequence[float], name: str, number: int, **more: Any) -> dict[str, Any]:
    """A trace of bars in the colour of its number."""
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": {"color": colour(number)}, **more}


def figure(
    traces: list[dict[str, Any]],
    title: str,
    x: str,
    *,
    y: str = "",
    percent: bool = False,
    legend: bool = False,
    log: bool = False,
    note: str = "",
) -> Figure | None:
    """A figure of traces; None where there are none.

    Args:
        traces: As plotly takes them.
        title: The caption.
        x: What runs along.
        y: What goes up, where the caption does not say it.
        percent: Whether values are shares.
        legend: Whether names are shown.
        log: Whether the values' axis is logarithmic.
        note: What a reader may need to know to read it.
    """
    if not traces:
        return None
    layout: dict[str, Any] = {
        **_titled(title, note),
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "tickformat": _SHARE if percent else "", "type": "log" if log else "linear"},
        "showlegend": legend,
        "hovermode": "closest",
    }
    if log:
        layout["yaxis"]["dtick"] = "D2"  # names of 1, 2 and 5 of each decade
    if percent:  # around a single point, plotly's own axis goes beyond
        layout["yaxis"]["autorangeoptions"] = {"minallowed": 0, "maxallowed": 1}
    if x == "round" and max((max(t["x"], default=0) for t in traces), default=0) <= _FEW_ROUNDS:
        layout["xaxis"]["dtick"] = 1  # there is no half a round
    return {"data": traces, "layout": layout}


def heat(
    values: Sequence[Sequence[float | None]],
    across: Sequence[str],
    down: Sequence[str],
    title: str,
    x: str,
    y: str,
    *,
    percent: bool = False,
    note: str = "",
) -> Figure:
    """A heat map: rows of values, from the top; names of its columns and rows."""
    number = "%{z:.1%}" if percent else "%{z}"
    gap = 1 if max(len(across), len(down)) <= 40 else 0
    trace = {
        "type": "heatmap",
        "z": [list(row) for row in values],
        "x": list(across),
        "y": list(down),
        "colorscale": _SCALE,
        "zmin": 0,
        "xgap": gap,
        "ygap": gap,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": _SHARE if percent else ""},
        "hovertemplate": f"{x} %{{x}}, {y} %{{y}}: {number}<extra></extra>",
    }
    if percent:
        trace["zmax"] = 1
    layout = {
        **_titled(title, note),
        "xaxis": {"title": {"text": x}, "type": "category"},
        "yaxis": {"title": {"text": y}, "type": "category", "autorange": "reversed"},
        "showlegend": False,
    }
    return {"data": [trace], "layout": layout}


def colour(number: int) -> str:
    """The colour of a number, on light pages."""
    return COLOURS[number % len(COLOURS)]


def numbers_of(runs: Iterable[RunRecord]) -> Mapping[str, int]:
    """A number a label, so that a method has one colour on the whole page."""
    return {name: i for i, name in enumerate(dict.fromkeys(run.label for run in runs))}


def present(figures: Iterable[Figure | None]) -> list[Figure]:
    """The figures that there is something to show for."""
    return [figure for figure in figures if figure]


def by_level(name: str) -> tuple[int, float, str]:
    """Levels from the largest to the smallest, then other names."""
    try:
        return (0, -float(name), name)
    except ValueError:
        return (1, 0.0, name)


def _titled(title: str, note: str) -> dict[str, Any]:
    return {"title": {"text": title, "font": {"size": 14}, "x": 0, "xref": "paper"}, "meta": {"note": note}}
