"""Figures about what a run cost: bytes and seconds, round by round."""

from __future__ import annotations

from collections.abc import Sequence

from fedfi.report.curves import by_time, by_traffic, curve
from fedfi.report.figures import Figure, bars, figure, present
from fedfi.report.reading import RunRecord, unit_for

_SCORES = (
    ("global/accuracy", "Accuracy"),
    ("ranking/hr@10", "Hit rate at 10"),
    ("local/accuracy_mean", "Clients' mean accuracy"),
)


def costs(runs: Sequence[RunRecord]) -> list[Figure]:
    """What was reached for so many bytes and so much time, then what each round took."""
    many = len({run.label for run in runs}) > 1
    key, name = next((s for s in _SCORES if any(s[0] in run.result for run in runs)), _SCORES[0])
    made = [by_traffic(runs, key, f"{name} by traffic"), by_time(runs, key, f"{name} by time")]
    if not many:
        return present([*made, traffic(runs[0]), seconds(runs[0])])
    for direction in ("up, from clients", "down, to clients"):
        each = curve(runs, f"bytes/{direction.partition(',')[0]}", f"Bytes a round, {direction}")
        if each:
            each["layout"]["yaxis"] |= {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"}
        made.append(each)
    return present([*made, curve(runs, "seconds", "Seconds a round, judging included")])


def traffic(run: RunRecord) -> Figure | None:
    """Bytes of each round, up and down."""
    names = (("bytes/up", "up, from clients"), ("bytes/down", "down, to clients"))
    scale, unit = unit_for(max((m.get("bytes/up", 0) + m.get("bytes/down", 0) for m in run.metrics), default=0))
    return stacked(run, names, f"{unit} a round", scale, unit)


def seconds(run: RunRecord) -> Figure | None:
    """Seconds of each round."""
    return stacked(run, (("seconds", "seconds"),), "Seconds a round, judging included", 1.0, "s")


def stacked(run: RunRecord, names: Sequence[tuple[str, str]], title: str, scale: float, unit: str) -> Figure | None:
    """Bars a round, one number of the metrics above the other.

    Args:
        run: The run.
        names: Keys, and what they are called.
        title: The caption.
        scale: What values are divided by.
        unit: What that makes of them.
    """
    traces = [
        bars(
            [m["round"] for m in run.metrics if key in m],
            [m[key] / scale for m in run.metrics if key in m],
            name,
            i,
            hovertemplate=f"round %{{x}}: %{{y:.3f}} {unit}<extra>%{{fullData.name}}</extra>",
        )
        for i, (key, name) in enumerate(names)
    ]
    made = figure([t for t in traces if t["x"]], title, "round", legend=len(traces) > 1)
    return made and {**made, "layout": {**made["layout"], "barmode": "stack"}}
