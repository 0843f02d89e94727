"""From errors to exit codes: 0 done, 2 bad input, 3 the run failed, 130 interrupted, 143 terminated."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

BAD_INPUT, FAILED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Stopped(Exception):
    """The user, or the system, ended a command; `code` is the exit code and the text says how to go on."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which takes the way of an interrupt."""


@dataclass
class Ending:
    """Whether SIGTERM has come."""

    terminated: bool = False


@contextmanager
def terminable() -> Iterator[Ending]:
    """Within it, SIGTERM takes the way of an interrupt, so that nothing half done is left; says whether it came."""
    owner, ending = os.getpid(), Ending()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker process, which inherited this
            os._exit(TERMINATED)
        ending.terminated = True
        raise _Terminated

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread, where no signal arrives anyway
        before = None
    try:
        yield ending
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def stoppable(resume: str) -> Iterator[None]:
    """Within it, an interrupt or SIGTERM ends the command with a line that says how to go on.

    Args:
        resume: A command.
    """
    try:
        with terminable():
            yield
    except _Terminated as error:
        raise Stopped(f"terminated; go on with: {resume}", TERMINATED) from error
    except KeyboardInterrupt as error:
        raise Stopped(f"interrupted; go on with: {resume}", INTERRUPTED) from error


def note_workers(workers: int, parts: int, what: str, quiet: bool) -> None:
    """Says on stderr where some of the workers will have nothing to do.

    Args:
        workers: How many were asked for.
        parts: Into how many the work falls.
        what: What the parts are, such as ``"clients a round"``.
        quiet: Say nothing.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    useful = max(1, min(cores, parts))
    if workers > useful and not quiet:
        print(
            f"--workers {workers}: more than {useful} do not help here: {cores} cores, {parts} {what}", file=sys.stderr
        )


def quoted(path: Path) -> str:
    """A path as a shell takes it."""
    import shlex

    return shlex.quote(str(path))


def usage(error: Exception) -> str:
    """What a wrong use of a command is called, in one line, in which no hint stands twice."""
    context = getattr(error, "ctx", None)
    command = f"{context.command_path}: " if context is not None else ""
    text = str(error.format_message())  # type: ignore[attr-defined]
    return command + re.sub(r"(\s+Did you mean [^?]*\?)\1+", r"\1", text)  # one of typer's, one of click's


def tell(error: BaseException, code: int, debug: bool, text: str | None = None) -> int:
    """Prints an error as one line, and its trace when debugging; gives back the exit code."""
    if debug:
        traceback.print_exception(error)
    line = " ".join((str(error) if text is None else text).split())
    print(line, file=sys.stderr)
    return code
