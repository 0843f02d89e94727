"""Ratings as people keep them in tables, filtered and split; `ratingsfile` reads files of them.

The split is chronological, one out for the test and one for validation. Where two of a user's interactions have the
same time, the one that comes first in the file counts as the later one; that is what pandas'
``rank(method="first", ascending=False)`` makes of it, by which published splits were made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfi.arguments import described
from fedfi.data import lines
from fedfi.data.partition import whole
from fedfi.data.ratingcolumns import ROLES, check_columns, chosen
from fedfi.data.ratings import Negatives, RatingsData
from fedfi.errors import InputError, SettingError, some, unknown
from fedfi.numerics.counter import Ints

if TYPE_CHECKING:
    import pandas as pd

_FEWEST = 3
"""Interactions of a user: one to train on, one for validation, one for the test."""
_EXACT = 2.0**53
"""Whole numbers up to it are all floating-point numbers, too."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
_EARLIEST = 10**8
"""Seconds since 1970 below which a time is none: 1973."""


@dataclass(frozen=True, eq=False)
class Ratings:
    """Interactions, one a row, in the order of the file; a pair of user and item occurs once.

    Attributes:
        users: Names of users.
        items: Names of items.
        user: Row of `users`, ``[n]``.
        item: Row of `items`, ``[n]``.
        time: Seconds, or anything that rises with time, ``[n]`` float64; None where there is none.
        name: Name of the data set.
        unrated: How many users had no rating above 0, and are not among `users`.
        notes: What a user should know of how they were read.
    """

    users: tuple[str, ...]
    items: tuple[str, ...]
    user: Ints
    item: Ints
    time: np.ndarray[Any, np.dtype[np.float64]] | None
    name: str = "ratings"
    unrated: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.user)


def from_frame(frame: pd.DataFrame, name: str = "ratings", columns: Mapping[str, str] | None = None) -> Ratings:
    """Ratings from a table with columns for user and item, and perhaps rating and time.

    Ratings of 0 and below are dropped. Of a pair of user and item that occurs more than once the latest stays. Users
    and items are sorted by number where all are whole numbers, else by text.

    Args:
        frame: A row an interaction.
        name: For messages and records.
        columns: The names of columns that are called otherwise than in `fedfi.data.ratingcolumns`, such as
            ``{"user": "customer"}``.

    Raises:
        InputError: If a column is missing or there twice, a value is missing or no number, or two users or items could
            not be told apart.
    """
    roles = chosen(list(frame.columns), check_columns(columns), name)
    for column in roles.values():
        if said := lines.missing(frame[column], f"in {column!r}"):
            raise InputError(f"data {name!r}: {said}")
    users, user = _codes(frame, roles["user"], name)
    items, item = _codes(frame, roles["item"], name)
    numbers = {role: _numbers(frame, roles[role], name) for role in ("rating", "time") if role in roles}
    time = numbers.get("time")
    kept = np.flatnonzero(numbers["rating"] > 0) if "rating" in numbers else np.arange(len(frame))
    if not len(kept):
        raise InputError(f"data {name!r} has no rating above 0" if len(frame) else f"data {name!r} has no row")
    if time is not None:  # the latest of a pair; the first row among equal times is the latest
        kept = kept[np.lexsort((kept, -time[kept]))]
    pairs = user[kept] * len(items) + item[kept]
    kept = np.sort(kept[np.unique(pairs, return_index=True)[1]])
    user_rows, user = np.unique(user[kept], return_inverse=True)
    item_rows, item = np.unique(item[kept], return_inverse=True)
    return Ratings(
        users=tuple(users[i] for i in user_rows),
        items=tuple(items[i] for i in item_rows),
        user=user.astype(np.int64),
        item=item.astype(np.int64),
        time=None if time is None else time[kept],
        name=name,
        unrated=len(users) - len(user_rows),
        notes=(*_unread(frame, roles), *_alike(users, "users"), *_alike(items, "items")),
    )


def leave_one_out(
    ratings: Ratings,
    *,
    min_interactions: int = 5,
    negatives: Negatives = "exclude_train",
    negatives_per_positive: int = 4,
) -> RatingsData:
    """Splits ratings among users: the last item for the test, the one before it for validation.

    Users with fewer than `min_interactions` are dropped, then items that nobody has.

    Args:
        ratings: All of them.
        min_interactions: At least 3, so that one is left to train on.
        negatives: See `RatingsData`.
        negatives_per_positive: Drawn anew each epoch.

    Raises:
        InputError: If a number is out of range, or no user is left.
    """
    if not isinstance(ratings, Ratings):
        raise InputError(
            f"ratings is {described(ratings)}, expected fedfi.Ratings: leave_one_out(fedfi.load_ratings(...))"
        )
    min_interactions = whole("min_interactions", min_interactions, least=_FEWEST)
    negatives_per_positive = whole("negatives_per_positive", negatives_per_positive, least=1)
    if negatives not in ("exclude_train", "exclude_all"):
        raise InputError(unknown("negatives", negatives, ("exclude_train", "exclude_all")))
    counts = np.bincount(ratings.user, minlength=len(ratings.users))
    keep = counts[ratings.user] >= min_interactions
    if not keep.any():
        most = int(counts.max())
        if most < _FEWEST:
            raise InputError(
                f"no user of {ratings.name!r} has {_FEWEST} interactions, of which one is left to train on; the most"
                f" are {most}"
            )
        raise SettingError(
            f"min_interactions = {min_interactions}: no user of {ratings.name!r} has so many (nearest valid: {most})"
        )
    user_rows, user = np.unique(ratings.user[keep], return_inverse=True)
    item_rows, item = np.unique(ratings.item[keep], return_inverse=True)
    time = np.zeros(len(user)) if ratings.time is None else ratings.time[keep]
    place = np.arange(len(user))
    order = np.lexsort(
        (-place, time, user)
    )  # a user's rows from early to late; the file's first is the latest of a tie
    user, item, time = user[order], item[order], time[order]
    ends = np.cumsum(np.bincount(user))
    starts = ends - np.bincount(user)
    train = tuple(np.sort(item[a : b - 2]) for a, b in zip(starts, ends, strict=True))
    return RatingsData(
        users=tuple(ratings.users[i] for i in user_rows),
        items=tuple(ratings.items[i] for i in item_rows),
        train=train,
        validation=item[ends - 2],
        test=item[ends - 1],
        negatives=negatives,
        per_positive=negatives_per_positive,
        name=ratings.name,
        origin={
            "ratings": len(user),
            "split": "leave one out, by time; of equal times the first in the file counts as the last",
            "min_interactions": min_interactions,
            "users_dropped": len(ratings.users) - len(user_rows) + ratings.unrated,
        },
        warnings=(
            *_doubts(ratings, item, time, ends),
            *ratings.notes,
            *_dropped(len(ratings.users) - len(user_rows), ratings, min_interactions),
        ),
    )


def _doubts(ratings: Ratings, item: Ints, time: np.ndarray[Any, Any], ends: Ints) -> list[str]:
    """What keeps the split from being chronological."""
    if ratings.time is None:
        return ["there are no times: the first interaction of a user in the file counts as the last"]
    found = []
    order = np.argsort(item, kind="stable")
    items, times = item[order], time[order]
    same = items[1:] == items[:-1]
    if same.any() and (times[1:][same] == times[:-1][same]).all():
        found.append("times are not real: all users have an item at one and the same time, so the split follows items")
    elif time.max() < _EARLIEST:
        found.append(f"times are perhaps not real: the largest is {time.max():g}, which as seconds is before 1973")
    ties = int((time[ends - 1] == time[ends - 2]).sum())
    if ties:
        found.append(
            f"{ties} of {len(ends)} users have their last two items at the same time; the file's order decides"
        )
    return found


def _dropped(few: int, ratings: Ratings, min_interactions: int) -> list[str]:
    """Who is left out, and why."""
    reasons = []
    if few:
        reasons.append(f"{few} with fewer than {min_interactions} interactions (min_interactions)")
    if ratings.unrated:
        reasons.append(f"{ratings.unrated} without a rating above 0")
    all_ = len(ratings.users) + ratings.unrated
    return [f"{few + ratings.unrated} of {all_} users are left out: {', '.join(reasons)}"] if reasons else []


def _numbers(frame: pd.DataFrame, column: object, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of finite numbers.

    Raises:
        InputError: If a value is none, naming it and its place.
    """
    import pandas as pd

    values = frame[column]
    try:
        numbers: np.ndarray = pd.to_numeric(values).astype("float64").to_numpy()
    except (ValueError, TypeError) as error:
        wrong = pd.to_numeric(values, errors="coerce").isna().to_numpy()
        first = values.iloc[int(wrong.argmax())]
        where = f"{first!r} ({lines.placed(frame, wrong)})" if wrong.any() else str(error)
        raise InputError(f"data {name!r}: column {column!r} is not all numbers: {where}") from error
    if not np.isfinite(numbers).all():
        where = lines.placed(frame, ~np.isfinite(numbers))
        raise InputError(f"data {name!r}: column {column!r} is not all finite ({where})")
    return numbers


def _codes(frame: pd.DataFrame, column: object, name: str) -> tuple[tuple[str, ...], Ints]:
    """Names in order, and the place of each value among them.

    Raises:
        InputError: If values are no names, or two of them have one text.
    """
    import pandas as pd

    array = frame[column].to_numpy()
    if array.dtype.kind == "f" and (array == np.floor(array)).all():
        if (wrong := np.abs(array) > _EXACT).any():
            raise InputError(
                f"data {name!r}: column {column!r} holds floating-point numbers that are too large to tell one from the"
                f" next ({lines.placed(frame, wrong)}); give them as text or whole numbers"
            )
        array = array.astype(np.int64)
    try:
        codes, found = pd.factorize(array)
    except TypeError as error:  # such as lists, which cannot be compared
        kind = type(array[0]).__name__
        raise InputError(f"data {name!r}: column {column!r} holds a {kind} a row, expected texts or numbers") from error
    values = found.tolist()
    texts = [str(value) for value in values]
    first: dict[str, object] = {}
    for value, text in zip(values, texts, strict=True):
        if text in first:
            raise InputError(
                f"data {name!r}: column {column!r} holds both {first[text]!r} and {value!r}, which one name would stand"
                " for; give all as text"
            )
        first[text] = value
    order = sorted(first, key=int if all(map(_WHOLE.fullmatch, texts)) else str)
    place = {text: i for i, text in enumerate(order)}
    return tuple(order), np.array([place[text] for text in texts], dtype=np.int64)[codes]


def _unread(frame: pd.DataFrame, roles: Mapping[str, object]) -> list[str]:
    """That there are columns besides, which nothing reads."""
    rest = [str(c) for c in frame.columns if c not in roles.values() and str(c).strip()]
    if not rest:
        return []
    read = ", ".join(f"{role} = {str(column)!r}" for role, column in roles.items())
    lacking = ", ".join(f"{role} = ..." for role in ROLES if role not in roles)
    hint = f"; columns = {{ {lacking} }} would name what is not there" if lacking else ""
    return [f"columns that nothing reads: {some(rest, 8)} (read are {read}{hint})"]


def _alike(names: Sequence[str], what: str) -> list[str]:
    """That two names are one number written in two ways."""
    seen: dict[float, str] = {}
    for text in names:
        if _NUMBER.fullmatch(text) and abs(number := float(text)) < _EXACT:
            if number in seen:
                return [f"{what} {seen[number]!r} and {text!r} are two, though they are the same number"]
            seen[number] = text
    return []
