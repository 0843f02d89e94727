"""Numbers for people, rounded to the side that holds."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def rounded(value: float, digits: int, *, up: bool) -> str:
    """A positive number with so many digits at most, never below it, or never above it."""
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    exact = Decimal(value)
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding)):.{digits}g}"
