"""Figures about clients: how good each one's model is on its own examples, and who holds what."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedfi.report.figures import Figure, bars, colour, figure, heat, line, numbers_of
from fedfi.report.reading import RunRecord, percent

_MOST_BARS = 60
_FEW_SIZES, _ROOM = 10, 3
_NAMED = 400  # clients; of more, a heat map shows every n-th


def client_accuracies(runs: Sequence[RunRecord]) -> Figure | None:
    """How the clients' accuracies on their own test examples are distributed, in the round that the result is of."""
    traces = []
    for run in runs:
        found = shown_accuracies(run)
        if found:
            traces.append(
                {
                    "type": "box",
                    "name": run.label,
                    "y": list(found.values()),
                    "text": [f"client {client}" for client in found],
                    "boxpoints": "all",
                    "jitter": 0.5,
                    "pointpos": 0,
                    "marker": {"color": colour(numbers_of(runs)[run.label]), "size": 5, "opacity": 0.7},
                    "hovertemplate": "%{text}: %{y:.1%}<extra></extra>",
                }
            )
    return figure(
        traces,
        "Accuracy of each client on its own test examples",
        "",
        percent=True,
        note="A point is a client; the box holds the middle half of them, its line is the median.",
    )


def extremes(run: RunRecord) -> Figure | None:
    """The worst, the median and the best client over the rounds."""
    rounds = _accuracies(run)
    if not rounds:
        return None
    rules: tuple[tuple[str, Callable[[Iterable[float]], float]], ...] = (
        ("best", max),
        ("median", statistics.median),
        ("worst", min),
    )
    traces = [
        line([(round, rule(found.values())) for round, found in rounds.items()], name, i)
        for i, (name, rule) in enumerate(rules)
    ]
    note = "In each round anew: the worst client of one round need not be that of the next."
    return figure(traces, "Worst, median and best client", "round", percent=True, legend=True, note=note)


def extremes_table(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the worst, the median and the best client of each run, by name."""
    rows = []
    for run in runs:
        ranked = sorted(shown_accuracies(run).items(), key=lambda item: item[1])
        if ranked:
            (worst, low), (best, high) = ranked[0], ranked[-1]
            middle = statistics.median(value for _, value in ranked)
            shown = [f"{percent(low)} (client {worst})", percent(middle), f"{percent(high)} (client {best})"]
            rows.append([run.label, str(len(ranked)), *shown])
    return ["run", "clients judged", "worst", "median", "best"], rows


def shown_accuracies(run: RunRecord) -> Mapping[str, float]:
    """Each client's accuracy in the round that the result is of, else in the last in which clients were judged."""
    rounds = _accuracies(run)
    if not rounds:
        return {}
    chosen = run.result.get("round")
    return rounds[chosen] if chosen in rounds else rounds[max(rounds)]


def labels(run: RunRecord) -> Figure | None:
    """Who holds how many training examples of each label."""
    clients = _clients(run)
    if not clients or not all("class_counts" in client["train"] for client in clients.values()):
        return None
    every = -(-len(clients) // _NAMED)
    chosen = list(clients)[::every]
    counts = [clients[client]["train"]["class_counts"] for client in chosen]
    names = run.split.get("labels") or [str(i) for i in range(len(counts[0]))]
    columns = [list(column) for column in zip(*counts, strict=True)]
    note = f"Every {every}th of {len(clients)} clients." if every > 1 else ""
    return heat(columns, chosen, names, "Training examples by client and label", "client", "label", note=note)


def sizes(run: RunRecord) -> Figure | None:
    """How many training examples, or items, each client holds."""
    held = {name: client["train"]["size"] for name, client in _clients(run).items()}
    if not held:
        return None
    what = "items" if run.split.get("kind") == "ratings" else "examples"
    title = f"Training {what} of each client"
    if len(held) <= _MOST_BARS:
        made = figure([bars(list(held), list(held.values()), what, 0)], title, "client")
        assert made is not None  # there are bars
        made["layout"]["xaxis"]["type"] = "category"
        return made
    counted = Counter(held.values())
    trace = bars(sorted(counted), [counted[size] for size in sorted(counted)], "clients", 0)
    made = figure([trace], f"{title}: how many clients hold how many", f"training {what}", y="clients")
    assert made is not None  # there are bars
    if max(counted) - min(counted) < _FEW_SIZES:  # there is no half an example, and a single bar is no wall
        made["layout"]["xaxis"] |= {"dtick": 1, "range": [min(counted) - _ROOM, max(counted) + _ROOM]}
    return made


def _clients(run: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    """Each client's part of the split; those whose data are elsewhere, unknown here, are left out."""
    return {name: part for name, part in run.split.get("clients", {}).items() if isinstance(part, dict)}


def _accuracies(run: RunRecord) -> dict[int, dict[str, float]]:
    """Accuracy by round and client."""
    found: dict[int, dict[str, float]] = {}
    for event in run.of_kind("evaluated"):
        if "accuracy" in event["metrics"] and event["metrics"].get("examples", 1):
            found.setdefault(event["round"], {})[event["client"]] = event["metrics"]["accuracy"]
    return found
