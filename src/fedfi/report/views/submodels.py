"""Submodels: how good each level is, and what its masks keep."""

from __future__ import annotations

from fedfi.report.figures import Figure, by_level, family, figure, heat, line, present
from fedfi.report.reading import RunRecord
from fedfi.report.view import Part

_MOST_LAYERS = 8


def submodels(run: RunRecord) -> Part:
    """Levels, overlap with magnitude, spread of Fisher information, what is kept of each layer."""
    levels = r"levels/(?!mean/)([^/]+)"
    return Part(
        "Submodels",
        present(
            [
                family(run, rf"{levels}/accuracy", "Accuracy by level", percent=True),
                family(run, rf"{levels}/loss", "Loss by level"),
                keep_rates(run),
                kept_over_rounds(run),
                family(run, r"keep_lowest/(.+)", "Lowest kept part of any layer, by level", percent=True),
                family(
                    run,
                    r"jaccard/(.+)",
                    "Overlap with the largest weights (Jaccard), by level",
                    note="1: the mask is what magnitude would choose; 0: they share nothing.",
                ),
                family(
                    run,
                    r"(cv_fisher|cv_magnitude)",
                    "Coefficient of variation",
                    log=True,
                    note="The wider importance is spread, the less a small submodel loses.",
                ),
                masking_error(run),
            ]
        ),
        keys=r"levels/.*|jaccard/.*|cv_(fisher|magnitude)|keep(_lowest)?/.*|masking_error(_magnitude)?/.*",
    )


def keep_rates(run: RunRecord) -> Figure | None:
    """What part of each layer the submodels of each level keep, in the last round that tells."""
    latest: dict[str, float] = {}
    for metrics in run.metrics:
        latest |= {k: v for k, v in metrics.items() if k.startswith("keep/")}
    if not latest:
        return None
    parts = {tuple(key.split("/", 2)[1:]): value for key, value in latest.items()}
    levels = sorted({level for level, _ in parts}, key=by_level)
    layers = list(dict.fromkeys(layer for _, layer in parts))
    values = [[parts.get((level, layer)) for level in levels] for layer in layers]
    return heat(values, levels, layers, "Kept part of each layer, by level", "level", "layer", percent=True)


def kept_over_rounds(run: RunRecord) -> Figure | None:
    """What part of each layer the smallest submodels keep, round by round."""
    keys = list(dict.fromkeys(k for metrics in run.metrics for k in metrics if k.startswith("keep/")))
    levels = sorted({key.split("/", 2)[1] for key in keys}, key=by_level)
    if not levels or len(run.metrics) < 2:
        return None
    smallest = [key for key in keys if key.startswith(f"keep/{levels[-1]}/")]
    traces = [
        line([(m["round"], m[key]) for m in run.metrics if key in m], key.split("/", 2)[2], i)
        for i, key in enumerate(smallest[:_MOST_LAYERS])
    ]
    note = f"The first {_MOST_LAYERS} of {len(smallest)} layers." if len(smallest) > _MOST_LAYERS else ""
    title = f"Kept part of each layer at level {levels[-1]}"
    return figure(traces, title, "round", percent=True, legend=True, note=note)


def masking_error(run: RunRecord) -> Figure | None:
    """What masks leave out, as a share of what magnitude's masks leave out."""
    keys = {key for metrics in run.metrics for key in metrics if key.startswith("masking_error/")}
    levels = sorted((key.partition("/")[2] for key in keys), key=by_level)
    traces = []
    for i, level in enumerate(levels):
        pairs = [
            (m["round"], m.get(f"masking_error/{level}", 0), m.get(f"masking_error_magnitude/{level}", 0))
            for m in run.metrics
        ]
        points = [(round, own / other) for round, own, other in pairs if other > 0]
        if points:
            traces.append(line(points, level, i))
    note = "Sum of F\N{SUPERSCRIPT TWO}x\N{SUPERSCRIPT TWO} over what a mask leaves out; below 1 it leaves out less."
    return figure(traces, "Masking error, relative to magnitude's masks", "round", legend=len(traces) > 1, note=note)
