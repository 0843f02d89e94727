"""The errors that fedfi raises, and the way it words a wrong choice.

Every error is also the built-in kind that a Python user would expect (`ValueError`, `RuntimeError`), so that
code that knows nothing of fedfi can catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_FEW = 20
"""So many names are still read."""
_ALIKE = 0.65
"""How much alike two names must be for one to be a slip of the other; below, suggestions are noise."""
_SURELY = 0.8
"""Above it, there is no need to name a second."""


class InputError(ValueError):
    """Bad input: a wrong key, value, file or shape. The command line ends with exit code 2."""


class SettingError(InputError):
    """Bad input whose text starts with the key of a setting, so that the tables it lies in may be put before it."""


class RunError(RuntimeError):
    """A run that cannot go on, such as too few replies. The command line ends with exit code 3."""


class PlaceError(InputError):
    """A file or directory that is not as it should be; the text names it, and no setting of a file is to blame."""


class OutputError(PlaceError):
    """A place where nothing can be written; its text starts with the place."""


def nearest(given: object, valid: Iterable[str], count: int = 1) -> list[str]:
    """The valid names that somebody who wrote `given` may have meant, best first; often none.

    A name is near if it is `given` in other case, spelt much alike, or begins with it.
    """
    text, names = str(given).lower(), sorted(valid)
    same = [name for name in names if name.lower() == text]
    alike = difflib.get_close_matches(text, {name.lower(): None for name in names}, n=count, cutoff=_ALIKE)
    begun = [name for name in names if len(text) > 1 and name.lower().startswith(text)]
    found = [*same, *(name for near in alike for name in names if name.lower() == near), *begun]
    return list(dict.fromkeys(found))[:count]


def unknown(kind: str, given: object, valid: Iterable[str], listed_by: str = "") -> str:
    """Words an unknown name: what was given, the nearest valid choices, and all of them where they are few.

    Args:
        kind: What is named, such as ``"algorithm"``.
        given: The name that was given.
        valid: All names that would have been accepted.
        listed_by: The command that prints all of them, for where they are many.

    Returns:
        One line without a full stop.
    """
    names = sorted(valid)
    few = len(names) <= _FEW
    near = nearest(given, names, 1 if few else 3)
    if near and difflib.SequenceMatcher(None, str(given).lower(), near[0].lower()).ratio() >= _SURELY:
        near = near[:1]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if few:
        choices = f"choose from {', '.join(names)}" if names else "there are none"
    elif listed_by:
        choices = f"`{listed_by}` prints all {len(names)}"
    else:
        choices = f"choose from {', '.join(names[:_FEW])} and {len(names) - _FEW} more"
    return f"unknown {kind} {str(given)!r}{hint} ({choices})"


def first_line(error: BaseException) -> str:
    """An error's kind, and the first line of what it says, without a C++ trace."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is torch's, numpy's or Python's way to say that memory is too small."""
    words = ("can't allocate memory", "out of memory", "storage size calculation overflow")
    told = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    return told or isinstance(error, MemoryError)
