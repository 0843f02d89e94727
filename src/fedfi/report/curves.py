"""A number of several runs over rounds, traffic or time: a line a method, the mean of its seeds, in a band of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from fedfi.report.figures import Figure, colour, figure, line, numbers_of
from fedfi.report.reading import RunRecord, unit_for

_BAND = "2e"  # how opaque, as two hexadecimal digits
_NOTE = "Line: mean of the seeds. Band: from the lowest to the highest of them."
Across = Callable[[RunRecord], Mapping[int, float]]


def curve(runs: Sequence[RunRecord], key: str, title: str, **options: Any) -> Figure | None:
    """A number over the rounds; None where no run has it. Options of `figures.figure`."""
    return _drawn(runs, key, title, "round", lambda run: {m["round"]: m["round"] for m in run.metrics}, **options)


def by_traffic(runs: Sequence[RunRecord], key: str, title: str) -> Figure | None:
    """A number over the bytes sent so far, both ways."""
    scale, unit = unit_for(max((run.total("bytes/up") + run.total("bytes/down") for run in runs), default=0))
    return _from_zero(_drawn(runs, key, title, f"{unit} sent, up and down", _so_far(scale, "bytes/up", "bytes/down")))


def by_time(runs: Sequence[RunRecord], key: str, title: str) -> Figure | None:
    """A number over the time so far."""
    longest = max((run.total("seconds") for run in runs), default=0)
    scale, unit = (1.0, "seconds") if longest < 300 else (60.0, "minutes") if longest < 18_000 else (3600.0, "hours")
    return _from_zero(_drawn(runs, key, title, unit, _so_far(scale, "seconds")))


def _so_far(scale: float, *keys: str) -> Across:
    def across(run: RunRecord) -> Mapping[int, float]:
        sums = accumulate(sum(m.get(key, 0) for key in keys) for m in run.metrics)
        return {m["round"]: value / scale for m, value in zip(run.metrics, sums, strict=True)}

    return across


def _drawn(runs: Sequence[RunRecord], key: str, title: str, x: str, across: Across, **options: Any) -> Figure | None:
    traces: list[dict[str, Any]] = []
    percent, seeded, named = "accuracy" in key, False, 0
    for label, number in numbers_of(runs).items():
        points = _points([run for run in runs if run.label == label], key, across)
        if not points:
            continue
        named += 1
        if any(len(values) > 1 for _, values in points):
            seeded = True
            traces += _band(points, label, number)
        means = [(at, statistics.fmean(values)) for at, values in points]
        traces.append(line(means, label, number, legendgroup=label))
    note = {"note": _NOTE} if seeded else {}
    return figure(traces, title, x, percent=percent, legend=named > 1, **{**note, **options})


def _points(runs: Sequence[RunRecord], key: str, across: Across) -> list[tuple[float, list[float]]]:
    """For each round that some seed has judged: where it is, and the values of the seeds that are as far."""
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        places = across(run)
        for metrics in run.metrics:
            if key in metrics:
                found.setdefault(metrics["round"], []).append((places[metrics["round"]], metrics[key]))
    return [(statistics.fmean(a for a, _ in pairs), [v for _, v in pairs]) for _, pairs in sorted(found.items())]


def _band(points: Sequence[tuple[float, list[float]]], label: str, number: int) -> list[dict[str, Any]]:
    edge = {"showlegend": False, "legendgroup": label, "hoverinfo": "skip", "mode": "lines"}
    edges: tuple[tuple[str, Callable[[Iterable[float]], float], dict[str, str]], ...] = (
        ("highest seed", max, {}),
        ("lowest seed", min, {"fill": "tonexty", "fillcolor": colour(number) + _BAND}),
    )
    traces = []
    for name, of, more in edges:
        values = [(x, math.nan if any(map(math.isnan, v)) else of(v)) for x, v in points]
        trace = line(values, f"{label}, {name}", number, **edge, **more)
        traces.append({**trace, "line": {"width": 0, "color": colour(number)}})
    return traces


def _from_zero(made: Figure | None) -> Figure | None:
    if made:
        made["layout"]["xaxis"]["rangemode"] = "tozero"
    return made
