"""Failures of clients in words: what may be done about one, and many as one line a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedfi.errors import counted, first_line, these
from fedfi.importing import place

UNJUDGED = "unjudged"
"""Key of the warning in `events.jsonl` that in an evaluation nobody could be judged."""
_SHOWN = 5
_LONGEST = 300
_ADVICE = (
    (
        "Expected more than 1 value per channel when training",
        "batch norm cannot train on one example: leave out clients that hold one, set batch_size above 1, or take a"
        " model with another norm, such as group or layer norm",
    ),
)
"""What torch says, and what a user can do about it."""


def cause(error: BaseException) -> str:
    """An error of a client's work in one line: what, where in a user's code, and what can be done where that is known.

    Args:
        error: What the work raised.
    """
    line = first_line(error)
    advice = next((f"; {advice}" for said, advice in _ADVICE if said in line), "")
    return line + place(error) + advice


def reasons(failures: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each distinct reason of failures, most frequent first: who, in how many rounds, why.

    Errors that differ in numbers or in the client's name alone are one reason, told in the words of the first.

    Args:
        failures: Events of the kind ``"failure"``, with `client`, `stage`, `error` and, if known, `round`.
    """
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in failures:
        kinds.setdefault((str(failure["stage"]), _kind(failure)), []).append(failure)
    often = sorted(kinds.values(), key=lambda same: -len(same))
    lines = [_line(same) for same in often[:_SHOWN]]
    return lines + ([f"{len(often) - _SHOWN} more reasons"] if len(often) > _SHOWN else [])


def unjudged(failures: Iterable[Mapping[str, Any]], round: int) -> str:
    """What to say of an evaluation in which everybody failed.

    Args:
        failures: As for `reasons`, those of the evaluation.
        round: After which it was, from 1.
    """
    return f"after round {round} nobody could be judged: {'; '.join(reasons(failures))}"


def _kind(failure: Mapping[str, Any]) -> str:
    return re.sub(
        r"\d[\d.]*(e[-+]?\d+)?|\bnan\b|\binf\b", "#", str(failure["error"]).replace(repr(failure["client"]), "")
    )


def _line(same: list[Mapping[str, Any]]) -> str:
    clients = list(dict.fromkeys(str(failure["client"]) for failure in same))
    rounds = {failure["round"] for failure in same if "round" in failure}
    count, unit = (len(rounds), "round") if rounds else (len(same), "time")
    stage = str(same[0]["stage"])
    where = "" if stage == "client_update" else f" in {stage}"
    text = str(same[0]["error"]).strip()
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{these('client', clients)}, {counted(count, unit)}{where}: {text}"
