"""The command `fedfi`."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

from fedfi.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, TERMINATED, Ending, Stopped, tell, terminable, usage
from fedfi.errors import InputError, RunError, first_line, out_of_memory
from fedfi.printing import unheeded

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        arguments: What follows the command's name; by default those of the process.
    """
    with unheeded(), terminable() as ending:
        code = _main(list(sys.argv[1:] if arguments is None else arguments), ending)
        return TERMINATED if ending.terminated else code


def _main(given: list[str], ending: Ending) -> int:
    debug = "--debug" in given or os.environ.get("FEDFI_DEBUG", "") not in ("", "0")
    given = [a for a in given if a != "--debug"]
    _warn(quiet=bool({"-q", "--quiet"} & set(given)))
    from fedfi.cli.app import app

    try:
        code = app(args=given, prog_name="fedfi", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            return tell(KeyboardInterrupt(), INTERRUPTED, debug, "terminated" if ending.terminated else "interrupted")
        return code if isinstance(code, int) else 0
    except InputError as error:
        return tell(error, BAD_INPUT, debug)
    except RunError as error:
        return tell(error, FAILED, debug)
    except Stopped as error:
        return tell(error, error.code, debug)
    except KeyboardInterrupt as error:
        return tell(error, INTERRUPTED, debug, "interrupted")
    except OSError as error:
        return tell(error, BAD_INPUT, debug, f"{error.filename or 'fedfi'}: {error.strerror or error}")
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error, which older and newer typers define elsewhere
            return tell(error, BAD_INPUT, debug, usage(error))
        if out_of_memory(error):
            return tell(error, FAILED, debug, f"needs more memory than there is ({first_line(error)})")
        traceback.print_exc()
        return 1


def _warn(quiet: bool) -> None:
    """Has warnings of the library printed on stderr, a line each, unless a command shall be quiet."""
    log = logging.getLogger("fedfi")
    log.setLevel(logging.ERROR if quiet else logging.WARNING)
    if logging.lastResort is not None:  # prints the bare text; without other handlers, Python would use it, too
        log.addHandler(logging.lastResort)
