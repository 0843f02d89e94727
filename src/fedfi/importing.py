"""A user's own functions and classes, by name."""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedfi.errors import InputError, first_line, out_of_memory, unknown

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NOT_OWN = (Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")))
"""Where fedfi lies, and Python's own modules."""
_TORCH = [Path(place) for place in getattr(find_spec("torch"), "submodule_search_locations", None) or ()]
_INSTALLED = {"site-packages", "dist-packages"}
_PLACES: ContextVar[tuple[str, ...]] = ContextVar("_PLACES", default=())


@contextmanager
def importing_from(*places: Path | str) -> Iterator[None]:
    """Within it, modules are looked for in these directories first; those that are not there are left out."""
    known = dict.fromkeys(str(Path(place).resolve()) for place in places if Path(place).is_dir())
    token, path = _PLACES.set(tuple(known)), list(sys.path)
    sys.path[:0] = known
    try:
        yield
    finally:
        sys.path[:] = path
        _PLACES.reset(token)


def import_places() -> list[str]:
    """The directories that a user's own modules are looked for in: given ones, else the working directory."""
    return list(_PLACES.get() or (str(Path.cwd()),))


def is_module(name: str) -> bool:
    """Whether a file or folder of `import_places` is the module's, or the first package of its name."""
    first = name.partition(".")[0]
    found = (place / file for place in map(Path, import_places()) for file in (first, f"{first}.py"))
    return any(path.exists() for path in found)


def import_callable(name: str, what: str) -> Any:
    """A function or class by ``"package.module:name"``, importable from `import_places` too.

    Args:
        name: Where it lives.
        what: What it is to be, for errors, such as ``"model"``.

    Raises:
        InputError: If the name is of another form, or nothing callable is there.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{what} {name!r}: expected package.module:name")
    module_name, _, attribute = name.partition(":")
    places = import_places()
    try:
        with importing_from(*places):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        looked = f" (looked in {', '.join(places)})"
        raise InputError(f"{what} {name!r}: {module_name!r} cannot be imported: {error}{looked}") from error
    except Exception as error:  # a user's module may raise anything
        raise InputError(f"{what} {name!r}: {module_name!r} cannot be imported: {_told(error)}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        raise InputError(f"module {module_name!r}: " + unknown("name", attribute, own))
    return found


def call(function: Callable[..., Any], what: str, *arguments: Any, **options: Any) -> Any:
    """What a user's function returns; what it raises becomes one line that says where.

    Args:
        function: The function.
        what: What it is, for errors, such as ``"model 'mine:net'"``.
        arguments: What it is called with.
        options: Likewise, by name.

    Raises:
        InputError: If it raises anything.
    """
    try:
        return function(*arguments, **options)
    except InputError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise InputError(f"{what} needs more memory than there is ({first_line(error)})") from error
        raise InputError(f"{what} failed: {_told(error)}") from error


def _told(error: Exception) -> str:
    """An error in one line, with the user's line of code that led to it, or else that of an installed package."""
    if isinstance(error, SyntaxError):  # says itself where
        return first_line(error)
    return first_line(error) + (place(error) or _last(error, _is_others))


def place(error: BaseException) -> str:
    """Where a user's own code led to an error, `` (mine.py, line 23)``; empty where it had no part in it.

    A user's code is what belongs neither to fedfi nor to Python nor to an installed package.
    """
    return _last(error, _is_own)


def _last(error: BaseException, counts: Callable[[str], bool]) -> str:
    """The last line of a file that counts."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if counts(frame.filename):
            found = f" ({Path(frame.filename).name}, line {frame.lineno})"
    return found


def _is_own(file: str) -> bool:
    return not file.startswith("<frozen") and not _INSTALLED & set(Path(file).parts) and not _is_below(file, *_NOT_OWN)


def _is_others(file: str) -> bool:
    """Whether a file is of an installed package, as code of a user's may be; torch's lines say nothing of it."""
    return bool(_INSTALLED & set(Path(file).parts)) and not _is_below(file, _NOT_OWN[0], *_TORCH)


def _is_below(file: str, *folders: Path) -> bool:
    return any(map(Path(file).is_relative_to, folders))
