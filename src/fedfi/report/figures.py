"""Figures as plotly takes them: traces and a layout. The colours of axes and text come with the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from fedfi.report.reading import RunRecord, unit_for

Figure = dict[str, Any]

COLOURS = ("#3b76d6", "#e07b39", "#2f9e77", "#c2477f", "#8a63d2", "#b59a1f", "#4aa8c0", "#d05050")
_ACCENT = [[0, "rgba(59,118,214,0.04)"], [1, "rgba(59,118,214,1)"]]
_SHARE = ".0%"
_FEW_ROUNDS = 10


def curve(runs: Sequence[RunRecord], key: str, title: str) -> Figure | None:
    """A number over the rounds, a line a run, a colour a label; None where no run has it."""
    traces = []
    colours = colours_of(runs)
    named: set[str] = set()
    for run in runs:
        points = [(line["round"], line[key]) for line in run.metrics if key in line]
        if points:
            traces.append(_line(points, run.label, colours[run.label], legend=run.label not in named))
            named.add(run.label)
    return _figure(traces, title, "round", percent="accuracy" in key, legend=len(named) > 1)


def by_traffic(runs: Sequence[RunRecord], key: str, title: str) -> Figure | None:
    """A number over the bytes sent so far, both ways."""
    scale, unit = unit_for(max((run.total("bytes/up") + run.total("bytes/down") for run in runs), default=0))
    traces = []
    colours = colours_of(runs)
    named: set[str] = set()
    for run in runs:
        sent = accumulate(line.get("bytes/up", 0) + line.get("bytes/down", 0) for line in run.metrics)
        points = [(b / scale, line[key]) for b, line in zip(sent, run.metrics, strict=True) if key in line]
        if points:
            traces.append(_line(points, run.label, colours[run.label], legend=run.label not in named))
            named.add(run.label)
    figure = _figure(traces, title, f"{unit} sent, up and down", percent="accuracy" in key, legend=len(named) > 1)
    if figure:
        figure["layout"]["xaxis"]["rangemode"] = "tozero"
    return figure


def family(run: RunRecord, pattern: str, title: str, *, percent: bool = False, log: bool = False) -> Figure | None:
    """One run's numbers whose keys match `pattern`, a line each, named by the pattern's group."""
    keys: dict[str, str] = {}
    for line in run.metrics:
        keys |= {key: found[1] for key in line if (found := re.fullmatch(pattern, key))}
    ordered = sorted(keys, key=lambda k: _level(keys[k]))
    traces = [
        _line([(m["round"], m[key]) for m in run.metrics if key in m], keys[key], COLOURS[i % len(COLOURS)])
        for i, key in enumerate(ordered)
    ]
    return _figure(traces, title, "round", percent=percent, legend=len(traces) > 1, log=log)


def traffic(run: RunRecord) -> Figure | None:
    """Bytes of each round, up and down."""
    names = (("bytes/up", "up, from clients"), ("bytes/down", "down, to clients"))
    scale, unit = unit_for(max((m.get("bytes/up", 0) + m.get("bytes/down", 0) for m in run.metrics), default=0))
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": [m["round"] for m in run.metrics if key in m],
            "y": [m[key] / scale for m in run.metrics if key in m],
            "marker": {"color": COLOURS[i]},
            "hovertemplate": f"round %{{x}}: %{{y:.3f}} {unit}<extra>%{{fullData.name}}</extra>",
        }
        for i, (key, name) in enumerate(names)
    ]
    figure = _figure([t for t in traces if t["x"]], f"{unit} a round", "round", legend=True)
    return figure and {**figure, "layout": {**figure["layout"], "barmode": "stack"}}


def keep_rates(run: RunRecord) -> Figure | None:
    """What part of each layer the submodels of each level keep, in the last round that tells."""
    latest: dict[str, float] = {}
    for line in run.metrics:
        latest |= {k: v for k, v in line.items() if k.startswith("keep/")}
    parts = {tuple(key.split("/", 2)[1:]): value for key, value in latest.items()}
    levels = sorted({level for level, _ in parts}, key=_level)
    layers = list(dict.fromkeys(layer for _, layer in parts))
    if not parts:
        return None
    values = [[parts.get((level, layer)) for layer in layers] for level in levels]
    return _heat(values, layers, levels, "Kept part of each layer, by level", "layer", "level", percent=True)


def labels(run: RunRecord) -> Figure | None:
    """Who holds how many training examples of each label."""
    clients = run.split.get("clients", {})
    if not all("class_counts" in client["train"] for client in clients.values()) or not clients:
        return None
    counts = [client["train"]["class_counts"] for client in clients.values()]
    names = run.split.get("labels") or [str(i) for i in range(len(counts[0]))]
    columns = [list(column) for column in zip(*counts, strict=True)]
    return _heat(columns, list(clients), names, "Training examples by client and label", "client", "label")


def client_accuracies(runs: Sequence[RunRecord]) -> Figure | None:
    """How the clients' accuracies on their own test examples are distributed, at the last evaluation."""
    traces = []
    colours = colours_of(runs)
    for run in runs:
        judged = [e for e in run.of_kind("evaluated") if "accuracy" in e["metrics"]]
        last = max((e["round"] for e in judged), default=0)
        found = [(e["metrics"]["accuracy"], e["client"]) for e in judged if e["round"] == last]
        if found:
            traces.append(
                {
                    "type": "box",
                    "name": run.label,
                    "y": [value for value, _ in found],
                    "text": [f"client {client}" for _, client in found],
                    "boxpoints": "all",
                    "jitter": 0.5,
                    "pointpos": 0,
                    "marker": {"color": colours[run.label], "size": 5, "opacity": 0.7},
                    "hovertemplate": "%{text}: %{y:.1%}<extra></extra>",
                }
            )
    return _figure(traces, "Accuracy of each client on its own test examples", "", percent=True, legend=False)


def colours_of(runs: Iterable[RunRecord]) -> Mapping[str, str]:
    """A colour a label."""
    names = dict.fromkeys(run.label for run in runs)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def present(figures: Iterable[Figure | None]) -> list[Figure]:
    """The figures that there is something to show for."""
    return [figure for figure in figures if figure]


def _line(points: Sequence[tuple[float, float]], name: str, colour: str, *, legend: bool = True) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) < 3 else "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": legend,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": colour, "width": 2},
    }


def _figure(
    traces: list[dict[str, Any]],
    title: str,
    x: str,
    *,
    percent: bool = False,
    legend: bool = False,
    log: bool = False,
) -> Figure | None:
    if not traces:
        return None
    layout: dict[str, Any] = {
        "title": {"text": title, "font": {"size": 14}, "x": 0, "xref": "paper"},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"tickformat": _SHARE if percent else "", "type": "log" if log else "linear"},
        "showlegend": legend,
        "hovermode": "closest",
    }
    if percent:  # around a single point, plotly's own axis goes beyond
        layout["yaxis"]["autorangeoptions"] = {"minallowed": 0, "maxallowed": 1}
    if x == "round" and max((max(t["x"]) for t in traces), default=0) <= _FEW_ROUNDS:
        layout["xaxis"]["dtick"] = 1  # there is no half a round
    return {"data": traces, "layout": layout}


def _heat(
    values: Sequence[Sequence[float | None]],
    across: Sequence[str],
    down: Sequence[str],
    title: str,
    x: str,
    y: str,
    *,
    percent: bool = False,
) -> Figure:
    number = "%{z:.1%}" if percent else "%{z}"
    trace = {
        "type": "heatmap",
        "z": [list(row) for row in values],
        "x": list(across),
        "y": list(down),
        "colorscale": _ACCENT,
        "zmin": 0,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": _SHARE if percent else ""},
        "hovertemplate": f"{x} %{{x}}, {y} %{{y}}: {number}<extra></extra>",
    }
    if percent:
        trace["zmax"] = 1
    layout = {
        "title": {"text": title, "font": {"size": 14}, "x": 0, "xref": "paper"},
        "xaxis": {"title": {"text": x}, "type": "category"},
        "yaxis": {"title": {"text": y}, "type": "category", "autorange": "reversed"},
        "showlegend": False,
    }
    return {"data": [trace], "layout": layout}


def _level(name: str) -> tuple[int, float, str]:
    """Levels from the largest to the smallest, then other names."""
    try:
        return (0, -float(name), name)
    except ValueError:
        return (1, 0.0, name)
