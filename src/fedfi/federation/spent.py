"""What a run has spent of a budget, such as privacy: never given back, whichever round is the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

_BUDGET = "privacy/"


def is_spent(key: str) -> bool:
    """Whether a number of `metrics.jsonl` says what has been spent until then, not how good a round is."""
    return key.startswith(_BUDGET)


def spent(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What the rounds of some lines of `metrics.jsonl` came to: the newest value of each such number.

    Epsilon without noise is infinite, which JSON does not have: what is read as no number is infinite here.
    """
    found = {key: float(value) for line in lines for key, value in line.items() if is_spent(key)}
    return {key: math.inf if math.isnan(value) else value for key, value in found.items()}


def privacy(found: Mapping[str, float]) -> str | None:
    """What `spent` says of a client's privacy, for reading; None where the run promises none."""
    if "privacy/epsilon" not in found:
        return None
    epsilon = found["privacy/epsilon"]
    if math.isinf(epsilon):
        return "none: there is no noise, so epsilon is infinite"
    return f"epsilon {epsilon:.3f}, delta {found['privacy/delta']:g}"
