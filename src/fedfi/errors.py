"""The errors that fedfi raises, and the way it words a wrong choice.

Every error is also the built-in kind that a Python user would expect (`ValueError`, `RuntimeError`), so that
code that knows nothing of fedfi can catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: a wrong key, value, file or shape. The command line ends with exit code 2."""


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
