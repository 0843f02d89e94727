"""The errors that fedfi raises, and the way it words a wrong choice.

Every error is also the built-in kind that a Python user would expect (`ValueError`, `RuntimeError`), so that
code that knows nothing of fedfi can catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: a wrong key, value, file or shape. The command line ends with exit code 2."""


class SettingError(InputError):
    """Bad input whose text starts with the key of a setting, so that the tables it lies in may be put before it."""


class RunError(RuntimeError):
    """A run that cannot go on, such as too few replies. The command line ends with exit code 3."""


def unknown(kind: str, given: object, valid: Iterable[str]) -> str:
    """Words an unknown name: what was given, the nearest valid choice, and all of them where they are few.

    Args:
        kind: What is named, such as ``"algorithm"``.
        given: The name that was given.
        valid: All names that would have been accepted.

    Returns:
        One line without a full stop.
    """
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {str(given)!r}{hint} (choose from {', '.join(names)})"


def first_line(error: BaseException) -> str:
    """An error's kind, and the first line of what it says, without a C++ trace."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is torch's, numpy's or Python's way to say that memory is too small."""
    words = ("can't allocate memory", "out of memory", "storage size calculation overflow")
    told = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    return told or isinstance(error, MemoryError)
