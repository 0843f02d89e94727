"""The errors that fedfi raises, and the way it words a wrong choice.

Every error is also the built-in kind that a Python user would expect (`ValueError`, `RuntimeError`), so that
code that knows nothing of fedfi can catch it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SET = "--set"
_FEW = 20
"""So many names are still read."""
_ALIKE = 0.65
"""How much alike two names must be for one to be a slip of the other; below, suggestions are noise."""
_SURELY = 0.8
"""Above it, there is no need to name a second."""


class InputError(ValueError):
    """Bad input: a wrong key, value, file or shape. The command line ends with exit code 2.

    Attributes:
        tables: Tables of an experiment from whose settings it may come, the likeliest first; none where its text begins
            with a key, or no setting is to blame.
        option: The argument of `fedfi.load` that it is about, or none.
    """

    tables: tuple[str, ...] = ()
    option: str = ""


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

    A name is near if it is `given` in other case, spelt much alike, or begins with it. Numbers are near by value.
    """
    text, names = str(given).lower(), sorted(valid)
    number, numbers = as_number(text), {name: as_number(name) for name in names}
    if number is not None and names and None not in numbers.values():
        return sorted(names, key=lambda name: abs((numbers[name] or 0.0) - number))[:count]
    same = [name for name in names if name.lower() == text]
    alike = difflib.get_close_matches(text, {name.lower(): None for name in names}, n=count, cutoff=_ALIKE)
    begun = [name for name in names if len(text) > 1 and name.lower().startswith(text)]
    found = [*same, *(name for near in alike for name in names if name.lower() == near), *begun]
    return list(dict.fromkeys(found))[:count]


def as_number(text: str) -> float | None:
    """The finite number that a text is, ``40%`` too; None for any other text."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


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


def beside(path: Path, suffixes: Collection[str], *, folders: bool = False, where: bool = False) -> str:
    """What to say behind the name of a file that is not there: that its folder is not, or the nearest one in it.

    Args:
        path: Where it should be.
        suffixes: Kinds of files that would do besides its own, such as ``".csv"``.
        folders: Whether a folder would do, too.
        where: Whether to say in which folder a relative path was looked for.

    Returns:
        The end of a line, beginning with its own punctuation.
    """
    folder = path.parent
    if not folder.is_dir():
        return f" (there is no folder {folder})"
    looked = f" (looked in {folder.resolve()})" if where and not path.is_absolute() else ""
    kinds = {*suffixes, path.suffix} - {""}
    fit = [p for p in folder.iterdir() if p.suffix in kinds or (folders and p.is_dir() and p.name[:1] != ".")]
    by_name = {p.stem if p.suffix in kinds else p.name: p for p in sorted(fit)}  # endings are alike, and say nothing
    near = nearest(path.stem, by_name)
    return f"{looked}; did you mean {str(path.with_name(by_name[near[0]].name))!r}?" if near else looked


@contextmanager
def about(*tables: str) -> Iterator[None]:
    """Within it, input errors that do not know yet from which tables of settings they may come are of these."""
    try:
        yield
    except InputError as error:
        error.tables = error.tables or tables
        raise


@contextmanager
def of_option(option: str) -> Iterator[None]:
    """Within it, input errors without an `option` are about this argument of a call; empty: about none."""
    try:
        yield
    except InputError as error:
        error.option = error.option or option
        raise


@contextmanager
def blaming(source: str, overridden: Mapping[str, str]) -> Iterator[None]:
    """Within it, errors about what the command line gave start with that instead of with the source.

    An error about a key that it gave is its alone; one about a table, or what is built of tables, of which it gave a
    part names its keys and the source, since either may be the cause.

    Args:
        source: Where the other settings come from; errors begin with it.
        overridden: Dotted keys that the command line gave, and what an error about one begins with: `SET`, before the
            key, or such as ``"--algorithms fedavg:"``.
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        said = text.removeprefix(f"{source}: ")
        if said == text:
            raise
        key = re.split(r"[: ]", said, maxsplit=1)[0]  # of quoted parts, the first words will do
        if given := max((given for given in overridden if _within(key, given)), key=len, default=""):
            raise InputError(f"{overridden[given]} {said}") from error
        found = [given for given in overridden if any(_within(given, table) for table in (key, *error.tables))]
        if not found:
            raise
        keys = [given for given in found if overridden[given] == SET]
        others = dict.fromkeys(overridden[given].rstrip(":") for given in found if overridden[given] != SET)
        who = [*([f"{SET} {', '.join(keys)}"] if keys else []), *others]
        raise InputError(f"{', '.join(who)} with {source}: {said}") from error


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(f"{table}.")


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number of things: ``"1 value"``, ``"2 values"``.

    Args:
        number: How many.
        singular: What one is called.
        plural: What several are called; by default with an ``s``.
    """
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def some(names: Sequence[object], most: int = 3) -> str:
    """The first of some names: ``"'a', 'b', 'c', ..."``."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def these(noun: str, names: Sequence[object]) -> str:
    """Some things by name: ``"client 'a'"``, ``"4 clients ('a', 'b', 'c', ...)"``; at least one."""
    return f"{noun} {names[0]!r}" if len(names) == 1 else f"{counted(len(names), noun)} ({some(names)})"


def first_line(error: BaseException) -> str:
    """An error's kind, and the first line of what it says, without a C++ trace."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is torch's, numpy's or Python's way to say that memory is too small."""
    words = ("can't allocate memory", "out of memory", "storage size calculation overflow")
    told = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    return told or isinstance(error, MemoryError)
