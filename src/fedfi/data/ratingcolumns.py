"""Which column of a table of ratings is which: by the names that people use, or by those that a user gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedfi.arguments import described
from fedfi.data.lines import refuse_twice
from fedfi.errors import InputError, SettingError, unknown

KNOWN = {
    "user": ("user", "uid", "user_id", "userId", "userID"),
    "item": ("item", "mid", "item_id", "itemId", "iid", "movieId", "movie_id", "artistID", "artist_id"),
    "rating": ("rating", "ratings", "score", "weight"),
    "time": ("time", "timestamp", "timestamps"),
}
"""What a column holds, and what it is called; other case, and no or other joints between words, are the same name."""
ROLES = tuple(KNOWN)


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Checks what a user says of the names of columns.

    Args:
        columns: Such as ``{"user": "customer", "item": "article"}``; None says nothing.

    Raises:
        SettingError: If it is no table, a key is unknown, a value is no text, or a column is named twice.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise SettingError(f'columns: of ratings is a table such as {{ user = "customer" }}, got {described(columns)}')
    for what, column in columns.items():
        if what not in KNOWN:
            raise SettingError(f"columns.{what}: {unknown('key', what, KNOWN)}")
        if not isinstance(column, str):
            raise SettingError(f"columns.{what} = {column!r}: must be the name of a column")
    twice = next((column for column, count in Counter(columns.values()).items() if count > 1), None)
    if twice is not None:
        raise SettingError(f"columns: {' and '.join(k for k, v in columns.items() if v == twice)} are both {twice!r}")
    return dict(columns)


def recognised(names: Sequence[str], given: Mapping[str, str]) -> bool:
    """Whether a line of a file names columns: one that is known or given is among them."""
    return any(name in given.values() for name in names) or bool(_known(names, {}))


def chosen(names: Sequence[object], given: Mapping[str, str], name: str) -> dict[str, object]:
    """The column of each role that there is.

    Args:
        names: Of all columns.
        given: Of those that a user names, by role.
        name: Of the data, for messages.

    Raises:
        SettingError: If a column that was given is not there.
        InputError: If there are no users or items, or two columns have one name.
    """
    refuse_twice(names, repr(name))
    for what, column in given.items():
        if column not in names:
            raise SettingError(f"columns.{what}: {unknown('column', column, map(str, names))} in data {name!r}")
    found: dict[str, object] = dict(given) | _known([n for n in names if n not in given.values()], given)
    for what in ("user", "item"):
        if what not in found:
            wrong = unknown("column", what, map(str, names))
            raise InputError(
                f"data {name!r}: {wrong}; known are {', '.join(KNOWN[what])}, and"
                f' columns = {{ {what} = "..." }} names another'
            )
    return {what: found[what] for what in ROLES if what in found}


def _known(names: Sequence[object], taken: Mapping[str, str]) -> dict[str, object]:
    """Columns by their known names, a name as it stands here before one that is alike."""
    plain = {_plain(name): name for name in reversed(names)}
    found: dict[str, object] = {}
    for what in [role for role in ROLES if role not in taken]:
        same = [known for known in KNOWN[what] if known in names]
        alike = [plain[_plain(known)] for known in KNOWN[what] if _plain(known) in plain]
        if same or alike:
            found[what] = (same or alike)[0]
    return found


def _plain(name: object) -> str:
    return "".join(c for c in str(name).lower() if c not in "_- .")
