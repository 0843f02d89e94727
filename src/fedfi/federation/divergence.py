"""Whether training has gone astray: a loss that is far above where it began, or no number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfi.errors import some

DIVERGENCE = "divergence"
"""Key of the warning in `events.jsonl`."""
_FACTOR = 5
_FACTOR_AT_CHANCE = 2
_AT_CHANCE = 1.1
_TRAINING, _GLOBAL = "train/loss", "global/loss"
_PRIVATE = (
    "the noise that makes it private may be too large for it; try less noise, a smaller clip or a larger epsilon of"
    " [algorithm.private], or more clients a round, or a smaller learning_rate"
)
_LOSSES = ((_TRAINING, "training loss"), (_GLOBAL, "global loss"))


@dataclass(frozen=True)
class Expected:
    """What losses of a run are held against.

    Attributes:
        chance: The loss of a model that knows nothing, where that is known.
        norms: Where the model has batch norms that keep running statistics.
    """

    chance: float | None = None
    norms: Sequence[str] = ()


def divergence(lines: Sequence[Mapping[str, Any]], expected: Expected | None = None, *, ended: bool = False) -> str:
    """What to say of the last of some lines of `metrics.jsonl`; empty where the losses are in order.

    A loss counts as astray when it is not finite, or more than five times that of chance, or, where that is unknown,
    what it began with. At a run's end the global loss does, too, where it is above its first one and more than twice
    that of chance, while the accuracy is at most a tenth above chance.

    Args:
        lines: Lines of one run, from the first round on.
        expected: What losses are held against.
        ended: Whether the last line is the run's last.
    """
    expected = expected or Expected()
    for key, name in _LOSSES:
        values = [(line["round"], line[key]) for line in lines if key in line]
        if not values or values[-1][0] != lines[-1]["round"]:
            continue
        (first_round, first), (round, last) = values[0], values[-1]
        first, last = (math.nan if value is None else float(value) for value in (first, last))
        chance = expected.chance
        start = abs(first) if chance is None else chance
        if not math.isfinite(last):
            return f"the {name} is {last} after round {round}: training diverged; {_advice(key, lines, expected)}"
        before = f"it was {short(first)} after round {first_round}" if chance is None else f"chance is {chance:.4f}"
        found = f"the {name} is {short(last)} after round {round}, {before}"
        if last > _FACTOR * start:
            wrong = "it is far from what clients train" if _calm(key, lines) and expected.norms else "training diverges"
            return f"{found}: {wrong}; {_advice(key, lines, expected)}"
        accuracy = lines[-1].get("global/accuracy")
        if not ended or key != _GLOBAL or chance is None or accuracy is None:
            continue
        if last > max(first, _FACTOR_AT_CHANCE * chance) and accuracy <= _AT_CHANCE * math.exp(-chance):
            return f"{found}, and the accuracy {accuracy:.4f} is that of chance; {_advice(key, lines, expected)}"
    return ""


def _calm(key: str, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a global loss is looked at while the training loss is not above its first one."""
    losses = [line[_TRAINING] for line in lines if _TRAINING in line]
    return key == _GLOBAL and bool(losses) and None not in (losses[0], losses[-1]) and losses[-1] <= losses[0]


def _advice(key: str, lines: Sequence[Mapping[str, Any]], expected: Expected) -> str:
    advice = _PRIVATE if "privacy/noise" in lines[-1] else "try a smaller learning_rate"
    if key != _GLOBAL or not expected.norms:
        return advice
    norms = f"the running statistics of batch norms ({some(expected.norms)})"
    if not _calm(key, lines):
        return f"{advice}; {norms} may be why, too: group norm has none"
    return f"clients learn (training loss {short(lines[-1][_TRAINING])}), so that {norms} may be why: use group norm"


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
