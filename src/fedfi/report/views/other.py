"""Numbers that no other part shows, such as those of a method of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedfi.report.figures import family, present
from fedfi.report.reading import RunRecord
from fedfi.report.view import Part

_STANDARD = (
    r"round|seconds|clients/.*|bytes/(up|down)|global/.*|local/.*|personal/.*|validation/.*|ranking/.*|train/loss"
)
_MOST_FIGURES = 12
_MOST_LINES = 12


def other(run: RunRecord, shown: Sequence[str]) -> Part:
    """A figure for each first half of the keys that are left.

    Args:
        run: The run.
        shown: Patterns of the metrics that other parts show.
    """
    known = re.compile("|".join(f"(?:{pattern})" for pattern in (_STANDARD, *shown)))
    groups: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for metrics in run.metrics for key in metrics):
        if not known.fullmatch(key):
            groups.setdefault(key.partition("/")[0], []).append(key)
    figures = []
    for name, keys in list(groups.items())[:_MOST_FIGURES]:
        pattern = "|".join(map(re.escape, keys[:_MOST_LINES]))
        figures.append(family(run, f"({pattern})", name if len(keys) > 1 else keys[0]))
    left = sum(len(keys) - _MOST_LINES for keys in groups.values() if len(keys) > _MOST_LINES)
    left += sum(map(len, list(groups.values())[_MOST_FIGURES:]))
    text = f"{left} more are in metrics.jsonl." if left else ""
    return Part("Other numbers", present(figures), text=text)
