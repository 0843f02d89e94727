"""Guidance of users' tables by their mean: what it does to rankings, how far gates open, what it does to items."""

from __future__ import annotations

import statistics

from torch import Tensor

from fedfi.federation.packet import Packet
from fedfi.report.embedding import embedded
from fedfi.report.figures import Figure, bars, colour, figure, line, present
from fedfi.report.reading import RunRecord
from fedfi.report.view import Part

_KEY, _TAKEN = "ranking/hr@10", "means/taken"
_BEFORE, _AFTER = 5, 15
_MOST_LINES = 60


def guidance(run: RunRecord) -> Part:
    """Hit rate with the rounds of guidance, and around them; gates; one user's items before and after."""
    found = run.exhibit("guidance", "before", "after", "own")
    return Part(
        "Guidance",
        present([hit_rate(run), around(run), *([*items(found), gates(found)] if found else [])]),
        keys=_TAKEN,
    )


def guided(run: RunRecord) -> list[int]:
    """The rounds in which tables took in a mean; none where that is most of them, as in methods without guidance."""
    rounds = [m["round"] for m in run.metrics if m.get(_TAKEN)]
    return rounds if 2 * len(rounds) <= len(run.metrics) else []


def hit_rate(run: RunRecord) -> Figure | None:
    """The hit rate over the rounds, with a line at each guidance."""
    points = [(m["round"], m[_KEY]) for m in run.metrics if _KEY in m]
    rounds = guided(run)
    if not points or not rounds:
        return None
    note = "Dotted: rounds in which tables took in the mean."
    if len(rounds) > _MOST_LINES:
        note += f" The last {_MOST_LINES} of {len(rounds)}."
    made = figure([line(points, "hit rate at 10", 0)], "Hit rate at 10, and guidance", "round", note=note)
    assert made is not None  # there are points
    made["layout"]["shapes"] = [
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": r, "x1": r, "line": {"dash": "dot", "width": 1}}
        for r in rounds[-_MOST_LINES:]
    ]
    return made


def around(run: RunRecord) -> Figure | None:
    """The mean hit rate so many rounds before and after a guidance, as far as it was judged."""
    judged = {m["round"]: m[_KEY] for m in run.metrics if _KEY in m}
    rounds = guided(run)
    found: dict[int, list[float]] = {}
    for at in rounds:
        for offset in range(-_BEFORE, _AFTER + 1):
            if at + offset in judged:
                found.setdefault(offset, []).append(judged[at + offset])
    if len(found) < 2:
        return None
    points = [(offset, statistics.fmean(values)) for offset, values in sorted(found.items())]
    note = f"Mean over {len(rounds)} guidances; at 0 a table has taken in the mean and trained for one round."
    return figure([line(points, "hit rate", 0)], "Hit rate around guidance", "rounds since guidance", note=note)


def gates(found: Packet) -> Figure | None:
    """How gates are distributed, of all items and of those that users train on."""
    traces = []
    for i, (key, name) in enumerate((("gates", "all items"), ("gates_own", "items of the user"))):
        if key in found.tensors and int(found.tensors[key].sum()):
            counts = found.tensors[key]
            middles = [(bin + 0.5) / len(counts) for bin in range(len(counts))]
            traces.append(bars(middles, (counts / counts.sum()).tolist(), name, i))
    note = (
        f"{found.scalars['users']} users, round {found.scalars['round']}. Half open: the mean comes in as it is;"
        " less weakens it, more amplifies it."
    )
    made = figure(traces, "Distribution of gates", "gate", percent=True, legend=True, note=note)
    if made:
        made["layout"] |= {"barmode": "group", "bargap": 0.05}
        made["layout"]["xaxis"]["range"] = [0, 1]
        made["layout"]["yaxis"].pop("autorangeoptions")  # shares of twenty bars are small
    return made


def items(found: Packet) -> list[Figure]:
    """One user's items before and after guidance, in two dimensions."""
    before, after, own = (found.tensors[name] for name in ("before", "after", "own"))
    if len(own) < 4:
        return []
    places = embedded(before, after)
    note = (
        f"t-SNE of both tables together: near is alike, axes have no meaning. User {found.scalars['user']},"
        f" round {found.scalars['round']}; {len(own)} items."
    )
    halves = (("before", places[: len(own)]), ("after", places[len(own) :]))
    reach = 1.08 * float(places.abs().max()) or 1.0
    return [_map(f"Items of a user {name} guidance", part, own, note, reach) for name, part in halves]


def _map(title: str, places: Tensor, own: Tensor, note: str, reach: float) -> Figure:
    traces = []
    for i, (name, chosen) in enumerate((("other items", ~own), ("items that the user trains on", own))):
        if bool(chosen.any()):
            x, y = places[chosen].T.tolist()
            marker = {"color": colour(i), "size": 6, "symbol": ("circle", "diamond")[i], "opacity": 0.75}
            traces.append({"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker})
    made = figure(traces, title, "", legend=True, note=note)
    assert made is not None  # there are items
    for axis in ("xaxis", "yaxis"):
        made["layout"][axis] |= {"showticklabels": False, "zeroline": False, "range": [-reach, reach]}
    return made
