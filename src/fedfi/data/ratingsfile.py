"""Files of ratings: csv, tab-separated, MovieLens's ``::``, RecBole's ``.inter``, parquet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedfi.data import lines
from fedfi.data.interactions import Ratings, from_frame
from fedfi.data.ratingcolumns import ROLES, check_columns, chosen, recognised
from fedfi.errors import InputError, some

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".dat", ".data", ".inter", ".txt", ".parquet")
_READ, _NOT_READ = ("::", "\t", ","), (";", "|", " ")
"""What may separate cells, and what else is recognised."""
_WORDS = re.compile(r"[^\W\d]+(?:[ _-][^\W\d]+)*")
_NAME_THEM = "columns = { user = ..., item = ... } names columns; without names, they are user, item, rating, time"


def is_ratings_file(path: Path) -> bool:
    """Whether a file's name says that it holds ratings."""
    return path.suffix in (".inter", ".dat")


def read_ratings(path: Path, name: str, columns: Mapping[str, str] | None = None) -> Ratings:
    """Reads a file of ratings; its separator and heading are recognised.

    Args:
        path: Columns user, item, and perhaps rating and time: in that order without a heading, or named (`user`,
            `uid`, `user_id`, `UserID`, ...; a RecBole heading such as ``user_id:token`` too). Separated by ``::``, tabs
            or commas; or a parquet file. Users and items are read as text: "01" and "1" are two.
        name: For messages and records.
        columns: The names of columns that are called otherwise, such as ``{"user": "customer"}``.

    Raises:
        InputError: If it cannot be read or understood, a row has too few or too many cells, or its first line is
            neither a heading that is known nor a row.
    """
    given = check_columns(columns)
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
        if len(found) != 1:
            names = ", ".join(p.name for p in found) or "none"
            raise InputError(f"data {name!r}: expected one file of ratings in {path}, found {names}")
        path = found[0]
    try:
        frame = _parquet(path) if path.suffix == ".parquet" else _text(path, name, given)
    except InputError:
        raise
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(f"data {name!r}: {path} cannot be read: {error}") from error
    return from_frame(frame, name, given)


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path)


def _text(path: Path, name: str, given: Mapping[str, str]) -> pd.DataFrame:
    separator = _separator(path, name)
    line, first = next(lines.records(path, separator))
    heading = [cell.strip().strip('"').partition(":")[0] for cell in first]
    if recognised(heading, given):
        roles = chosen(heading, given, f"{name}: {path}")
        return _rows(path, name, separator, heading, [heading.index(str(roles[r])) for r in ("user", "item")], line)
    if 2 <= len(first) <= len(ROLES):
        frame = _rows(path, name, separator, ROLES[: len(first)], (0, 1), 0)
        _refuse_heading(frame, [cell.strip() for cell in first], path, name)
        return frame
    raise InputError(f"data {name!r}: {path}: no name of its first line is known ({some(heading, 8)}); {_NAME_THEM}")


def _separator(path: Path, name: str) -> str:
    lines.check_start(path, name)
    with path.open(encoding="utf-8-sig", errors="replace") as file:  # whoever reads it all refuses what is no text
        first = next((line for line in file if line.strip()), "")
    separator = next((s for s in _READ if s in first), None)
    if separator is None:
        *names, last = (lines.SEPARATORS[s] for s in _READ)
        other = next((lines.SEPARATORS[s] for s in _NOT_READ if s in first.strip()), None)
        looks = f" and looks separated by {other}" if other else ""
        raise InputError(f"data {name!r}: {path} is separated by none of {', '.join(names)} and {last}{looks}")
    return separator


def _rows(
    path: Path, name: str, separator: str, names: Sequence[str], ids: Sequence[int], skipped: int
) -> pd.DataFrame:
    """The table of a file, users and items as they are written; pandas would shift or fill rows of other lengths.

    Args:
        path: The file.
        name: Of the data, for messages.
        separator: What separates cells.
        names: Of the columns.
        ids: Which columns are read as text.
        skipped: Lines up to the end of the heading.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(
            path,
            sep=separator,
            header=None,
            skiprows=skipped,
            dtype=dict.fromkeys(ids, str),
            skipinitialspace=True,
            engine="python" if separator == "::" else "c",
            encoding="utf-8-sig",
        )
    except pd.errors.EmptyDataError as error:
        raise InputError(f"data {name!r}: {path} has a heading and no row") from error
    except ValueError:  # pandas' parser errors are ValueErrors, and so are Python's of bytes that are no text
        lines.check_text(path, name)
        lines.check_cells(path, separator, len(names), name)
        raise
    if frame.shape[1] != len(names) or frame.iloc[:, -1].isna().any():
        lines.check_cells(path, separator, len(names), name)
    frame.columns = list(names)
    for place in ids:
        frame[names[place]] = frame[names[place]].str.strip()
    frame.index = lines.index_of(path, separator, len(frame), heading=skipped > 0)
    return frame


def _refuse_heading(frame: pd.DataFrame, first: Sequence[str], path: Path, name: str) -> None:
    """Refuses a first line that looks like a heading of names that are not known; it would become an interaction."""
    import pandas as pd

    def numbers(values: pd.Series) -> bool:
        return bool(len(values)) and bool(pd.to_numeric(values, errors="coerce").notna().all())

    reason = ""
    for place, column in enumerate(frame.columns):
        if reason or numbers(frame[column].iloc[:1]):
            continue
        if column in ("rating", "time"):
            reason = f"{first[place]!r} is no {column}"
        elif numbers(frame[column].iloc[1:]):
            reason = f"{first[place]!r} is no number, as all others of its column are"
    once = all((frame[column] == cell).sum() == 1 for column, cell in zip(frame.columns, first, strict=True))
    if not reason and len(first) == 2 and once and all(map(_WORDS.fullmatch, first)):  # no number tells it apart
        reason = "it is made of words that occur nowhere else; if it is a row, put the line 'user,item' above it"
    if reason:
        line = lines.place(frame, 0)
        raise InputError(
            f"data {name!r}: {path}: {line} is no heading that is known, nor a row ({reason}); {_NAME_THEM}"
        )
