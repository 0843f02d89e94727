"""Numbers that grow from round to round: what a run has spent of a budget, such as privacy, and running totals.

What is spent is never given back, whichever round is the best. A running total is what it came to until a round: of
several rounds the newest counts, never their mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

TOTAL = "bytes/total"
"""The bytes that have gone up and down until a round, as a grid keeps them."""
_BUDGET = "privacy/"
_TOTALS = "/total"


def is_spent(key: str) -> bool:
    """Whether a number of `metrics.jsonl` says what has been spent until then, not how good a round is."""
    return key.startswith(_BUDGET)


def is_total(key: str) -> bool:
    """Whether a number is a running total, which is never averaged over rounds: what is spent, and ``".../total"``."""
    return is_spent(key) or key.endswith(_TOTALS)


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
