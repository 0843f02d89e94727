"""A user's own functions and classes, by name."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from fedfi.errors import InputError, unknown

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def import_callable(name: str, what: str) -> Any:
    """A function or class by ``"package.module:name"``, importable from the working directory too.

    Args:
        name: Where it lives.
        what: What it is to be, for errors, such as ``"model"``.

    Raises:
        InputError: If the name is of another form, or nothing callable is there.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{what} {name!r}: expected package.module:name")
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{what} {name!r}: {module_name!r} cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)
    found = getattr(module, attribute, None)
    if not callable(found):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        raise InputError(f"module {module_name!r}: " + unknown("name", attribute, own))
    return found
