"""Merging: what alignment did to the objective and to the units of each layer, and how far parties are."""

from __future__ import annotations

import re

from torch import Tensor

from fedfi.report.figures import Figure, bars, figure, heat, present
from fedfi.report.reading import RunRecord
from fedfi.report.view import Part

_MOST_MATRICES = 4
_MOST_ROWS = 10
_PAIRS = (
    ("before", "where it began: the reference model"),
    ("unaligned", "the mean with units at their own places"),
    ("after", "the mean after alignment"),
)


def merging(run: RunRecord) -> Part:
    """Objective by layer, permuted units, alignment matrices, distances, weights."""
    merges = [m for m in run.metrics if any(key.startswith("merge/") for key in m)][-_MOST_ROWS:]
    chosen = list(dict.fromkeys(key for m in merges for key in m if key.startswith("merge/")))
    return Part(
        "Merging",
        present(
            [
                objective_by_layer(run),
                whole_objective(run),
                _newest(run, r"permuted/(.+)", "Permuted units of each layer", "layer", percent=True),
                *alignments(run),
                _newest(run, r"distance/(.+)", "Distance of each party from the merged model", "party"),
                _newest(run, r"weight/(.+)", "Weight of each party", "party", percent=True),
            ]
        ),
        head=["round", *chosen],
        rows=[[str(m["round"]), *(f"{m[key]:.4g}" if key in m else "" for key in chosen)] for m in merges if chosen],
        keys=r"objective/.*|permuted(/.*)?|distance/.*|weight/.*|merge/.*",
    )


def objective_by_layer(run: RunRecord) -> Figure | None:
    """The alignment's objective of each layer: of the reference, the plain mean and the aligned one, newest merge."""
    values = _latest(run, r"objective/(?:before|unaligned|after)/(.+)")
    layers = list(dict.fromkeys(key.split("/", 2)[2] for key in values))
    traces = []
    for i, (part, name) in enumerate(_PAIRS):
        found = {layer: values[key] for layer in layers if (key := f"objective/{part}/{layer}") in values}
        traces.append(bars(list(found), list(found.values()), name, i))
    note = "Weighted squared distances of the parties' units from their centre; the lower, the better they match."
    made = figure([t for t in traces if t["x"]], "Objective of each layer", "layer", legend=True, note=note)
    return _grouped(made)


def whole_objective(run: RunRecord) -> Figure | None:
    """The objective of the whole model, merged aligned and as it was, merge by merge."""
    names = (("objective/identity", "units at their own places"), ("objective/aligned", "aligned"))
    traces = [
        bars([m["round"] for m in run.metrics if key in m], [m[key] for m in run.metrics if key in m], name, i)
        for i, (key, name) in enumerate(names)
    ]
    return _grouped(figure([t for t in traces if t["x"]], "Objective of the full model", "round", legend=True))


def alignments(run: RunRecord) -> list[Figure]:
    """How many parties' unit is at which place, of the first layers."""
    found = run.exhibit("alignment")
    if found is None:
        return []
    parties = int(found.scalars.get("parties", 0))
    note = (
        f"The stronger the colour, the more of the {parties} parties have the unit of that row at the place of that"
        f" column in the merged model, in round {found.scalars['round']}. On the diagonal it stayed at its place."
    )
    return [_matrix(layer, counts, note) for layer, counts in list(found.tensors.items())[:_MOST_MATRICES]]


def _matrix(layer: str, counts: Tensor, note: str) -> Figure:
    places, units = ([str(i) for i in range(n)] for n in counts.shape)
    return heat(counts.T.tolist(), places, units, f"Alignment matrix of {layer}", "place", "unit", note=note)


def _newest(run: RunRecord, pattern: str, title: str, x: str, *, percent: bool = False) -> Figure | None:
    found = {key.partition("/")[2]: value for key, value in _latest(run, pattern).items()}
    made = figure([bars(list(found), list(found.values()), title, 0)] if found else [], title, x, percent=percent)
    return _grouped(made)


def _grouped(made: Figure | None) -> Figure | None:
    if made:
        made["layout"] |= {"barmode": "group"}
        if isinstance(made["data"][0]["x"][0], str):
            made["layout"]["xaxis"]["type"] = "category"
    return made


def _latest(run: RunRecord, pattern: str) -> dict[str, float]:
    """The numbers of the last round in which there are some."""
    for metrics in reversed(run.metrics):
        found = {key: value for key, value in metrics.items() if re.fullmatch(pattern, key)}
        if found:
            return found
    return {}
