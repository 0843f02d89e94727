"""The progress of a run on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfi.data import available
from fedfi.federation.divergence import short
from fedfi.federation.loop import Observer
from fedfi.printing import unheeded

_SECONDS = 30.0
_PARTS = 10


@contextmanager
def progress(rounds: int, done: int = 0, *, quiet: bool = False, unit: str = "round") -> Iterator[Observer]:
    """Shows a bar that goes on by one with each call of what it yields.

    Where stderr is no terminal, a line is printed for each tenth of the rounds, and every 30 seconds.

    Args:
        rounds: All of them.
        done: Those behind us.
        quiet: Show nothing.
        unit: What a step of the bar is.
    """
    if quiet:
        yield lambda line: None
        return
    with unheeded(), _shown(rounds, done, unit) as observe:
        yield observe


@contextmanager
def _shown(rounds: int, done: int, unit: str) -> Iterator[Observer]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(rounds, done, unit)
        return
    columns = (
        TextColumn(unit),
        MofNCompleteColumn(),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as bar:
        task, told_of = bar.add_task(unit, total=rounds, completed=done, numbers=""), latest()

        def observe(line: Mapping[str, Any]) -> None:
            bar.update(task, completed=line.get("round", bar.tasks[0].completed + 1), numbers=told_of(line))

        yield observe


def _lines(rounds: int, done: int, unit: str) -> Observer:
    started = told = time.monotonic()
    count, first, rounds = done, -1, max(1, rounds)  # a run may lack nothing but its end
    told_of = latest()

    def observe(line: Mapping[str, Any]) -> None:
        nonlocal count, first, told
        step, text = int(line.get("round", count + 1)), told_of(line)
        if first < 0:  # a run goes on from its checkpoint, which may lie before its last round
            first = count = step - 1
        before, count = count * _PARTS // rounds, step
        now = time.monotonic()
        if count * _PARTS // rounds > before or now - told >= _SECONDS:
            told = now
            left = (now - started) / (count - first) * (rounds - count)
            rest = f"  {left:.0f} s left" if count < rounds else ""
            print(f"{unit} {count}/{rounds}  {text}{rest}", file=sys.stderr, flush=True)

    return observe


def latest() -> Callable[[Mapping[str, Any]], str]:
    """What to say of line after line: its numbers, or of a round without any, the last ones there were."""
    last = ""

    def told_of(line: Mapping[str, Any]) -> str:
        nonlocal last
        text = numbers(line)
        if text:
            last = f"{text} (round {line['round']})" if "round" in line else text
        return text or last or "not judged yet"

    return told_of


def numbers(line: Mapping[str, Any]) -> str:
    """The numbers of a round that fit on a line."""
    parts = []
    if "train/loss" in line:
        parts.append(f"train loss {short(line['train/loss'], 3)}")
    if "global/accuracy" in line:
        parts.append(f"accuracy {line['global/accuracy']:.2%}")
    if "ranking/hr@10" in line:
        parts.append(f"HR@10 {line['ranking/hr@10']:.3f}")
    return str(line.get("text", "")) or "  ".join(parts)


def loading(name: str, quiet: bool) -> None:
    """Says that data are being loaded, which may take a while unless they are embedded."""
    known = available()
    there = name in known or ":" in name or Path(name).expanduser().exists()  # not a misspelt one
    if not quiet and there and "(embedded)" not in known.get(name, ""):
        print(f"loading {name} ...", file=sys.stderr, flush=True)
