"""Runs in processes of their own, a few at a time: what the parent has loaded, they share.

Processes are forked where the platform forks safely; elsewhere the runs follow one another in this process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedfi.errors import InputError, RunError
from fedfi.orphans import die_with
from fedfi.progress import latest

Tell = Callable[[Mapping[str, Any]], None]
Work = Callable[[Tell], str | None]
"""Does the work, tells of each round, and may say at the end what it came to."""

Told = tuple[int, str, str]
"""Position of the work; ``"round"``, ``"result"`` or ``"failed"``; and the text."""


def in_processes(works: Iterable[Work], workers: int) -> Iterator[Told]:
    """Does all the work, at most `workers` at a time; a failure ends only its own.

    Args:
        works: Consumed only as fast as workers get free, so that what they share is loaded late.
        workers: Number of processes.

    Yields:
        What each tells, as it comes.
    """
    if sys.platform != "linux" or torch.cuda.is_initialized():
        yield from _in_turn(works)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a child must not inherit a pool of threads that the fork has killed
    context = multiprocessing.get_context("fork")
    busy: dict[Connection, tuple[int, Any]] = {}
    source = enumerate(works)
    exhausted = False
    try:
        while busy or not exhausted:
            while len(busy) < workers and not exhausted:
                item = next(source, None)
                if item is None:
                    exhausted = True
                    break
                near, far = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(os.getpid(), item[1], far), daemon=True)
                with warnings.catch_warnings():  # newer Pythons warn of forking while torch's idle threads exist
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                far.close()
                busy[near] = item[0], process
            for ready in wait(list(busy)) if busy else ():
                assert isinstance(ready, Connection)
                number, process = busy[ready]
                try:
                    kind, text = ready.recv()
                except EOFError:
                    kind, text = "ended", ""
                if kind in ("round", "result"):
                    yield number, kind, text
                    continue
                del busy[ready]
                ready.close()
                process.join()
                if kind == "failed":
                    yield number, kind, text
                elif process.exitcode:
                    yield number, "failed", f"its process died (exit code {process.exitcode}); enough memory?"
    finally:
        for _, process in busy.values():
            process.terminate()
        for _, process in busy.values():
            process.join()
        torch.set_num_threads(threads)


def _child(parent: int, work: Work, connection: Connection) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for kind, text in _done(work, lambda text: connection.send(("round", text))):
        connection.send((kind, text))


def _in_turn(works: Iterable[Work]) -> Iterator[Told]:
    for number, work in enumerate(works):
        told: list[str] = []
        ended = list(_done(work, told.append))
        yield from ((number, "round", text) for text in told)
        yield from ((number, kind, text) for kind, text in ended)


def _done(work: Work, tell: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    try:
        told_of = latest()
        result = work(lambda line: tell(f"round {line['round']}  {told_of(line)}"))
    except BrokenPipeError:
        return  # the parent is gone
    except Exception as error:
        if os.environ.get("FEDFI_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        known = isinstance(error, InputError | RunError)
        yield "failed", " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
    else:
        if result is not None:
            yield "result", result
