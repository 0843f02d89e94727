"""The progress bar, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Observer = Callable[[Mapping[str, Any]], None]


@contextmanager
def progress(rounds: int, done: int = 0, *, quiet: bool = False, unit: str = "round") -> Iterator[Observer]:
    """Shows a bar that goes on by one with each call of what it yields.

    Args:
        rounds: All of them.
        done: Those behind us.
        quiet: Show nothing.
        unit: What a step of the bar is.
    """
    if quiet:
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn(unit),
        MofNCompleteColumn(),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(unit, total=rounds, completed=done, numbers="")

        def observe(line: Mapping[str, Any]) -> None:
            bar.update(task, advance=1, numbers=numbers(line) or bar.tasks[0].fields["numbers"])

        yield observe


def numbers(line: Mapping[str, Any]) -> str:
    """The numbers of a round that fit on a line."""
    parts = []
    for key, name in (("train/loss", "train loss"), ("global/accuracy", "accuracy"), ("ranking/hr@10", "HR@10")):
        if key in line:
            parts.append(f"{name} {line[key]:.3f}")
    return str(line.get("text", "")) or "  ".join(parts)
