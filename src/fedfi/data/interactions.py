"""Ratings as people keep them, read, filtered and split: csv, MovieLens's ``::``, RecBole's ``.inter``, data frames.

The split is chronological, one out for the test and one for validation. Where two of a user's interactions have the
same time, the one that comes first in the file counts as the later one; that is what pandas'
``rank(method="first", ascending=False)`` makes of it, by which published splits were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfi.data import lines
from fedfi.data.ratings import Negatives, RatingsData
from fedfi.errors import InputError, unknown
from fedfi.numerics.counter import Ints

if TYPE_CHECKING:
    import pandas as pd

_ALIASES = {
    "user": ("user", "uid", "user_id", "userId", "userID"),
    "item": ("item", "mid", "item_id", "itemId", "iid", "movieId", "movie_id", "artistID", "artist_id"),
    "rating": ("rating", "ratings", "score", "weight"),
    "time": ("time", "timestamp", "timestamps"),
}
SUFFIXES = (".csv", ".tsv", ".dat", ".data", ".inter", ".txt")
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
    """

    users: tuple[str, ...]
    items: tuple[str, ...]
    user: Ints
    item: Ints
    time: np.ndarray[Any, np.dtype[np.float64]] | None
    name: str = "ratings"

    def __len__(self) -> int:
        return len(self.user)


def is_ratings_file(path: Path) -> bool:
    """Whether a file's name says that it holds ratings."""
    return path.suffix in (".inter", ".dat")


def read_ratings(path: Path, name: str) -> Ratings:
    """Reads a file of ratings; its separator and header are recognised.

    Args:
        path: Columns user, item, and perhaps rating and time: in that order without a header, or named (`user`,
            `uid`, `user_id`, ...; a RecBole header such as ``user_id:token`` too). Separated by ``::``, tabs or
            commas.
        name: For messages and records.

    Raises:
        InputError: If it cannot be read or understood.
    """
    import pandas as pd

    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
        if len(found) != 1:
            names = ", ".join(p.name for p in found) or "none"
            raise InputError(f"data {name!r}: expected one file of ratings in {path}, found {names}")
        path = found[0]
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline().rstrip("\r\n")
        separator = next((s for s in ("::", "\t", ",") if s in first), None)
        if separator is None:
            raise InputError(f"data {name!r}: {path} is separated by none of '::', tab and comma")
        columns = [c.partition(":")[0] for c in first.split(separator)] if separator != "::" else []
        named = any(c in names for c in columns for names in _ALIASES.values())
        frame = pd.read_csv(
            path,
            sep=separator,
            header=0 if named else None,
            engine="python" if separator == "::" else "c",
            encoding="utf-8-sig",
        )
        frame.index = lines.index_of(path, separator, len(frame), heading=named)
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(f"data {name!r}: {path} cannot be read: {error}") from error
    if named:
        frame.columns = columns
    elif not 2 <= frame.shape[1] <= 4:
        raise InputError(
            f"data {name!r}: {path} has no header and {frame.shape[1]} columns, expected user, item, rating, time"
        )
    else:
        frame.columns = list(_ALIASES)[: frame.shape[1]]
    return from_frame(frame, name)


def from_frame(frame: pd.DataFrame, name: str = "ratings") -> Ratings:
    """Ratings from a table with columns for user and item, and perhaps rating and time.

    Ratings of 0 and below are dropped. Of a pair of user and item that occurs more than once the latest stays. Users
    and items are sorted by number where all are whole numbers, else by text.

    Args:
        frame: A row an interaction.
        name: For messages and records.

    Raises:
        InputError: If a column is missing, or a value is missing or no number.
    """
    import pandas as pd

    columns = {what: next((n for n in names if n in frame.columns), None) for what, names in _ALIASES.items()}
    for what in ("user", "item"):
        if columns[what] is None:
            raise InputError(f"data {name!r}: {unknown('column', what, map(str, frame.columns))}")
    chosen = frame[[c for c in columns.values() if c is not None]].reset_index(drop=True)
    chosen.columns = [w for w, c in columns.items() if c is not None]
    if chosen.isna().any(axis=None):
        column = next(c for c in chosen.columns if chosen[c].isna().any())
        said = lines.missing(frame[columns[column]], f"in {columns[column]!r}")
        raise InputError(f"data {name!r}: {said}")
    for what in ("rating", "time"):
        if what in chosen:
            try:
                chosen[what] = pd.to_numeric(chosen[what]).astype("float64")
            except (ValueError, TypeError) as error:
                raise InputError(f"data {name!r}: column {columns[what]!r} is not all numbers: {error}") from error
            if not np.isfinite(chosen[what].to_numpy()).all():
                raise InputError(f"data {name!r}: column {columns[what]!r} is not all finite")
    if "rating" in chosen:
        chosen = chosen[chosen["rating"] > 0]
    if "time" in chosen:  # the latest of a pair; the first row among equal times is the latest
        order = np.lexsort((np.arange(len(chosen)), -chosen["time"].to_numpy()))
        kept = np.sort(order[~chosen.iloc[order].duplicated(["user", "item"]).to_numpy()])
        chosen = chosen.iloc[kept]
    else:
        chosen = chosen[~chosen.duplicated(["user", "item"])]
    if chosen.empty:
        raise InputError(f"data {name!r} has no rating above 0")
    users, user = _codes(chosen["user"])
    items, item = _codes(chosen["item"])
    return Ratings(users, items, user, item, chosen["time"].to_numpy() if "time" in chosen else None, name)


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
    if min_interactions < 3:
        raise InputError(f"min_interactions = {min_interactions}: must be at least 3 (nearest valid: 3)")
    if negatives not in ("exclude_train", "exclude_all"):
        raise InputError(unknown("negatives", negatives, ("exclude_train", "exclude_all")))
    counts = np.bincount(ratings.user, minlength=len(ratings.users))
    keep = counts[ratings.user] >= min_interactions
    if not keep.any():
        raise InputError(
            f"min_interactions = {min_interactions}: no user of {ratings.name!r} has so many"
            f" (nearest valid: {int(counts.max())})"
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
            "users_dropped": len(ratings.users) - len(user_rows),
        },
        warnings=tuple(_doubts(ratings, item, time, ends)),
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


def _codes(values: pd.Series) -> tuple[tuple[str, ...], Ints]:
    """Names in order, and the place of each value among them."""
    array = values.to_numpy()
    if array.dtype.kind == "f" and (array == np.floor(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        array = np.asarray([str(v) for v in array.tolist()])
    names, codes = np.unique(array, return_inverse=True)
    return tuple(map(str, names.tolist())), codes.astype(np.int64)
