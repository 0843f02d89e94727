"""Whether training has gone astray: a loss that is far above where it began, or no number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

DIVERGENCE = "divergence"
"""Key of the warning in `events.jsonl`."""
_FACTOR = 5
_PRIVATE = (
    "the noise that makes it private may be too large for it; try less noise, a smaller clip or a larger epsilon of"
    " [algorithm.private], or more clients a round, or a smaller learning_rate"
)
_LOSSES = (("train/loss", "training loss"), ("global/loss", "global loss"))


def divergence(lines: Sequence[Mapping[str, Any]], chance: float | None = None) -> str:
    """What to say of the last of some lines of `metrics.jsonl`; empty where the losses are in order.

    A loss counts as astray when it is not finite, or more than five times what it began with.

    Args:
        lines: Lines of one run, from the first round on.
        chance: The loss of a model that knows nothing, where that is known; else the first line's stands for it.
    """
    for key, name in _LOSSES:
        values = [(line["round"], line[key]) for line in lines if key in line]
        if not values or values[-1][0] != lines[-1]["round"]:
            continue
        (first_round, first), (round, last) = values[0], values[-1]
        advice = _PRIVATE if "privacy/noise" in lines[-1] else "try a smaller learning_rate"
        first, last = (math.nan if value is None else float(value) for value in (first, last))
        start = abs(first) if chance is None else chance
        if not math.isfinite(last):
            return f"the {name} is {last} after round {round}: training diverged; {advice}"
        if last > _FACTOR * start:
            before = f"it was {short(first)} after round {first_round}" if chance is None else f"chance is {chance:.4f}"
            return f"the {name} is {short(last)} after round {round}, {before}: training diverges; {advice}"
    return ""


def short(value: float, digits: int = 4) -> str:
    """A number that keeps its column: ``0.1235``, but ``3.9e18`` where it is large."""
    if math.isfinite(value) and abs(value) >= 1e5:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits}f}"


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for fewer than two numbers, or where one is none or infinite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    try:
        return statistics.stdev(values)
    except OverflowError:
        return math.inf
