"""The only file that needs matplotlib: charts of lines as SVG files, the same bytes for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from fedfi.errors import InputError

Points = Sequence[tuple[float, float]]

_DASHES = ("-", "--", ":", "-.")
_COLOURS = 10


@dataclass(frozen=True)
class Panel:
    """One of the charts that stand side by side.

    Attributes:
        title: What stands above it.
        lines: Points (x, y) of each line, by name.
        levels: Values y that have no x, drawn as thin lines across, by name.
    """

    title: str
    lines: Mapping[str, Points]
    levels: Mapping[str, float] = field(default_factory=dict)


def svg(panels: Sequence[Panel], x: str, y: str, *, logarithmic: bool = False) -> str:
    """Panels side by side, one legend for all: a name has the same colour in each.

    Args:
        panels: At least one.
        x: What the horizontal axes say.
        y: What the vertical axis says.
        logarithmic: Whether x is on a logarithmic scale; points at or below 0 are then left out.

    Raises:
        InputError: If matplotlib is not installed.
    """
    check_installed()
    import matplotlib
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for panel in panels for name in (*panel.lines, *panel.levels)))
    figure = Figure(figsize=(1 + 3.6 * len(panels), 4.2 + 0.2 * (len(names) // 4)), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    handles = {}
    for axes, panel in zip(every, panels, strict=True):
        for name, points in panel.lines.items():
            kept = [point for point in points if point[0] > 0 or not logarithmic]
            (handles[name],) = axes.plot([p[0] for p in kept], [p[1] for p in kept], **_look(names.index(name)))
        for name, level in panel.levels.items():
            handles[name] = axes.axhline(level, **(_look(names.index(name)) | {"linewidth": 0.8}))
        axes.set(title=panel.title, xlabel=x, xscale="log" if logarithmic else "linear")
        axes.grid(alpha=0.3)
    every[0].set_ylabel(y)
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=4, fontsize=8)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedfi", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def check_installed() -> None:
    """Before long work that ends in a chart.

    Raises:
        InputError: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise InputError("charts need matplotlib: pip install 'fedfi[plots]'")


def _look(number: int) -> dict[str, Any]:
    """Ten colours, then the same with other dashes."""
    return {"color": f"C{number % _COLOURS}", "linestyle": _DASHES[number // _COLOURS % len(_DASHES)], "linewidth": 1.5}
