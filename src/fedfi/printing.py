"""Printing never ends work: where the reader of stdout or stderr has gone away, what is printed is dropped."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class _Droppable(io.FileIO):
    """The end of a pipe or a terminal; without the other end, what is written is lost."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        terminal = stat.S_ISCHR(os.fstat(number).st_mode)  # of a disk, EIO is a fault
        self._gone = (errno.EPIPE, errno.EIO) if terminal else (errno.EPIPE,)

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno not in self._gone:
                raise
            return memoryview(content).nbytes


@contextmanager
def unheeded() -> Iterator[None]:
    """Within it, a reader of this process's stdout or stderr that goes away, such as ``head``, raises nothing.

    Streams that somebody else has put in their place are left as they are, and so are files, whose errors count.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _tolerant(sys.stdout, sys.__stdout__), _tolerant(sys.stderr, sys.__stderr__)
    made = [now for now, then in zip((sys.stdout, sys.stderr), before, strict=True) if now is not then]
    try:
        yield
    finally:
        for stream in made:
            with suppress(OSError):  # a full disk, say, which whoever flushes has told of
                stream.flush()
        sys.stdout, sys.stderr = before


def _tolerant(stream: TextIO, own: TextIO | None) -> TextIO:
    if stream is None or stream is not own or not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Droppable(stream.fileno())),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
