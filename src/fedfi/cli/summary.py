"""From many runs to one table: mean and sample standard deviation over seeds."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfi.federation.divergence import deviation, short
from fedfi.federation.spent import is_total
from fedfi.report.reading import RunRecord, judged, percent, size

_FIRST = (
    "global/accuracy",
    "global/loss",
    "levels/mean/accuracy",
    "levels/mean/loss",
    "local/accuracy_mean",
    "local/accuracy_worst",
)
_GROUPS = ("validation/", "personal/", "ranking/", "privacy/epsilon")
_TOTALS = ("bytes/up", "bytes/down", "seconds")

_SHORT = {
    "global/accuracy": "global",
    "levels/mean/accuracy": "levels",
    "local/accuracy_mean": "local",
    "local/accuracy_worst": "worst",
    "bytes/up": "up",
    "bytes/down": "down",
    "seconds": "time",
    "failures": "failures",
}

Summary = dict[str, dict[str, float | int | None]]


def values_of(run: RunRecord, last: int) -> dict[str, float]:
    """The numbers of one run: judged ones as means of the last evaluations, others as totals.

    Args:
        run: The run.
        last: How many evaluations are averaged; where the run chooses its best round, that round's alone counts.
    """
    lines = [line for line in run.metrics if judged(line)][-last:]
    values = {}
    if run.chosen_by:
        lines = [run.result] if run.result else []
        values["best_round"] = float(run.result.get("round", 0))
    for key in lines[-1] if lines else ():
        found = [line[key] for line in lines if key in line]
        if key not in ("round", *_TOTALS):
            values[key] = found[-1] if is_total(key) else sum(found) / len(found)
    values |= {key: run.total(key) for key in _TOTALS}
    values |= run.spent  # not judged: what counts is what all rounds came to
    values["failures"] = float(len(run.of_kind("failure")))
    return values


def summarise(runs: Iterable[Mapping[str, float]]) -> Summary:
    """Mean, sample standard deviation (None for a single value) and number of values of each number."""
    table: dict[str, list[float]] = {}
    for values in runs:
        for key, value in values.items():
            table.setdefault(key, []).append(value)
    return {
        key: {
            "mean": sum(v) / len(v),  # of numbers that may not be finite
            "sd": deviation(v),
            "n": len(v),
        }
        for key, v in table.items()
    }


def columns_of(summaries: Iterable[Summary]) -> list[str]:
    """The numbers that the table shows: those that any method has."""
    keys = {key: None for summary in summaries for key in summary}
    more = [key for key in keys if key.startswith(_GROUPS)]
    return [k for k in (*_FIRST, *more, *_TOTALS, "failures") if k in keys]


def markdown(summaries: Mapping[str, Summary], seeds: Mapping[str, int]) -> str:
    """The table for reading."""
    columns = [c for c in columns_of(summaries.values()) if "@" not in c or c.endswith("@10")]  # csv has all
    rows = [["method", "seeds", *(_heading(c) for c in columns)]]
    for label, summary in summaries.items():
        rows.append([label, str(seeds[label]), *(_cell(c, summary.get(c)) for c in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join([lines[0], _line(rule, widths), *lines[1:]]) + "\n"


def comma_separated(summaries: Mapping[str, Summary], seeds: Mapping[str, int]) -> str:
    """The table for other programs: bytes and seconds as they are, every digit."""
    columns = columns_of(summaries.values())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "seeds", *(name for c in columns for name in (c, f"{c} sd"))])
    for label, summary in summaries.items():
        cells: list[Any] = [label, seeds[label]]
        for column in columns:
            entry = summary.get(column, {})
            cells += [_blank(entry.get("mean")), _blank(entry.get("sd"))]
        writer.writerow(cells)
    return text.getvalue()


def print_table(results: Path) -> None:
    """A short table for a terminal, as wide as that is; all numbers are in the files beside `results`."""
    from rich.console import Console

    content = json.loads(results.read_text(encoding="utf-8"))
    methods = content["methods"]
    summaries = [method["summary"] for method in methods.values()]
    keys = [k for k in _SHORT if any(k in s for s in summaries)]
    if not any(s.get("failures", {}).get("mean") for s in summaries):
        keys = [k for k in keys if k != "failures"]
    columns = [["method", *methods]]
    columns += [[_SHORT[k], *(_cell(k, s.get(k), brief=True) for s in summaries)] for k in keys]
    width = Console().width
    while len(columns) > 2 and sum(max(map(len, c)) + 2 for c in columns) - 2 > width:
        columns.pop()
    for row in zip(*columns, strict=True):
        sizes = [max(map(len, column)) for column in columns]
        cells = [cell.rjust(size) for cell, size in zip(row[1:], sizes[1:], strict=True)]
        print("  ".join([row[0].ljust(sizes[0]), *cells]))
    seeds = max((len(m["seeds"]) for m in methods.values()), default=0)
    spread = f"mean ± sd over {seeds} seeds; " if seeds > 1 else ""
    print(f"{spread}every number: {results.with_name('table.md')}")


def _heading(key: str) -> str:
    return {"bytes/up": "up", "bytes/down": "down", "seconds": "time"}.get(key, key)


def _cell(key: str, entry: Mapping[str, Any] | None, *, brief: bool = False) -> str:
    """Mean and spread as `fedfi run` shows such a number; the spread of accuracies alone where it must be brief."""
    if entry is None:
        return ""
    mean = math.nan if entry["mean"] is None else entry["mean"]
    spread = "" if entry["sd"] is None or (brief and "accuracy" not in key) else f" ± {_shown(key, entry['sd'])}"
    return _shown(key, mean) + spread


def _shown(key: str, value: float) -> str:
    if not math.isfinite(value):
        return short(value)
    if "accuracy" in key:
        return percent(value)
    if key.startswith("bytes/"):
        return size(value)
    if key == "seconds":
        return f"{value:.1f} s"
    return f"{value:g}" if key == "failures" else short(value)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
    return f"| {' | '.join(cells)} |"


def _blank(value: float | int | None) -> Any:
    return "" if value is None else value
