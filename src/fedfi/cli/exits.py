"""From errors to exit codes: 0 done, 2 bad input, 3 the run failed, 130 interrupted, 143 terminated."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedfi.errors import InputError, RunError

BAD_INPUT, FAILED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Stopped(Exception):
    """The user, or the system, ended a command; `code` is the exit code and the text says how to go on."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which takes the way of an interrupt."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        arguments: What follows the command's name; by default those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or os.environ.get("FEDFI_DEBUG", "") not in ("", "0")
    given = [a for a in given if a != "--debug"]
    from fedfi.cli.app import app

    try:
        code = app(args=given, prog_name="fedfi", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except InputError as error:
        return _tell(error, BAD_INPUT, debug)
    except RunError as error:
        return _tell(error, FAILED, debug)
    except Stopped as error:
        return _tell(error, error.code, debug)
    except KeyboardInterrupt as error:
        return _tell(error, INTERRUPTED, debug, "interrupted")
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as the process
        return 1
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error, which older and newer typers define elsewhere
            return _tell(error, BAD_INPUT, debug, _usage(error))
        traceback.print_exc()
        return 1


@contextmanager
def stoppable(resume: str) -> Iterator[None]:
    """Within it, an interrupt or SIGTERM ends the command with a line that says how to go on.

    Args:
        resume: A command.
    """
    owner = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker process, which inherited this
            os._exit(TERMINATED)
        raise _Terminated

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread, where no signal arrives anyway
        before = None
    try:
        yield
    except _Terminated as error:
        raise Stopped(f"terminated; go on with: {resume}", TERMINATED) from error
    except KeyboardInterrupt as error:
        raise Stopped(f"interrupted; go on with: {resume}", INTERRUPTED) from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def quoted(path: Path) -> str:
    """A path as a shell takes it."""
    import shlex

    return shlex.quote(str(path))


def _usage(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = f"{context.command_path}: " if context is not None else ""
    return command + str(error.format_message())  # type: ignore[attr-defined]


def _tell(error: BaseException, code: int, debug: bool, text: str | None = None) -> int:
    if debug:
        traceback.print_exception(error)
    line = " ".join((str(error) if text is None else text).split())
    print(line, file=sys.stderr)
    return code
