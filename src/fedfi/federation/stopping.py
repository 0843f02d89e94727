"""The best round of a run by a number of the validation: its model is kept, and a run may end that waits too long.

Which round is best follows from the lines of `metrics.jsonl` alone, so a run that is resumed decides as if it had
never been away. The best round's checkpoint is kept beside the newest ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from fedfi.errors import InputError, RunError
from fedfi.federation import checkpoint
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import Tree

Lines = Sequence[Mapping[str, Any]]


def lower_is_better(key: str) -> bool:
    """Whether the best value of a number is its smallest: that of losses, such as ``validation/loss``."""
    return "loss" in key.rpartition("/")[2]


def best_line(lines: Lines, key: str) -> Mapping[str, Any] | None:
    """The line in which a number is best, the first of several; None where it is no number anywhere."""
    sign = -1.0 if lower_is_better(key) else 1.0
    found = [line for line in lines if key in line and not math.isnan(line[key])]
    return max(found, key=lambda line: sign * float(line[key]), default=None)


@final
class BestRound:
    """Watches a run for its best round.

    Args:
        evaluate: Which number is watched, and for how long.
        directory: Where checkpoints lie, or None where nothing is written.
    """

    def __init__(self, evaluate: Evaluate, directory: Path | None) -> None:
        self._key, self._patience, self._every = evaluate.best, evaluate.patience, evaluate.every
        self._directory = directory
        self._model: Tree | None = None

    def gives_up(self, lines: Lines) -> bool:
        """Whether the last round was judged, and the best one is at least `patience` rounds behind it."""
        if self._key is None or self._patience is None or not lines or not self._judged(lines[-1]):
            return False
        best = best_line(lines, self._key) or next(line for line in lines if self._judged(line))
        return bool(lines[-1]["round"] - best["round"] >= self._patience)

    def _judged(self, line: Mapping[str, Any]) -> bool:
        """Whether a round was judged, if only to find that nobody could be."""
        return self._key in line or line["round"] % self._every == 0

    def found(self, lines: Lines, judged: bool) -> bool:
        """Whether the last round is the best so far.

        Args:
            lines: The run's lines.
            judged: Whether it was judged, and somebody could be.

        Raises:
            InputError: If it was judged, but the number is not among what was found.
        """
        if self._key is None or not judged:
            return False
        if self._key not in lines[-1]:
            others = ", ".join(k for k in lines[-1] if k.startswith("validation/")) or "none"
            raise InputError(f"evaluate.best = {self._key!r}: there is no such number (nearest valid: {others})")
        best = best_line(lines, self._key)
        return best is not None and best["round"] == lines[-1]["round"]

    def keep(self, rounds: int, content: Any, model: Tree) -> None:
        """Keeps a round's model, and its checkpoint, which has just been saved."""
        self._model = model
        if self._directory:
            checkpoint.keep_best(self._directory, rounds, content)

    def resume(
        self, lines: Lines, rounds: int, content: Any, fresh: Callable[[], Any], model: Callable[[Any], Tree]
    ) -> None:
        """Finds the kept model of a run again.

        Where a later round was kept instead, since the run went back before that, it is made again by the rounds to
        come.

        Args:
            lines: The run's lines.
            rounds: How many rounds are done.
            content: What their checkpoint held.
            fresh: Makes content of the same kind, with the run's tables of rows.
            model: The model of such content.

        Raises:
            RunError: If the best round's checkpoint is lost or damaged, which no round to come can make good.
        """
        best = best_line(lines, self._key) if self._key else None
        if best is None or self._directory is None:
            return
        if best["round"] == rounds:  # perhaps the run ended before it was kept
            self.keep(rounds, content, model(content))
            return
        if any(number > rounds for number in checkpoint.best_rounds(self._directory)):
            return
        kept = checkpoint.load_best(self._directory, fresh())
        if kept is None or kept[0] != best["round"]:
            raise self._lost(best)
        self._model = model(kept[1])
        checkpoint.pin(content, kept[1])

    def result(self, lines: Lines, last: Tree) -> tuple[Tree, int | None]:
        """The model to deploy, and the best round where one is chosen.

        Raises:
            RunError: If the best round's model is lost.
        """
        best = best_line(lines, self._key) if self._key else None
        if best is None:
            return last, None
        if self._model is None:
            raise self._lost(best)
        return self._model, int(best["round"])

    def _lost(self, best: Mapping[str, Any]) -> RunError:
        return RunError(f"{self._directory}: the checkpoint of the best round, {best['round']}, is lost")
