"""Csv files read so that errors can name the line on which a row stands.

The index of a frame that was read from a file has the name `LINE` and holds, for each row, where it begins: a line
counted from 1 with the heading, or ``"5 of b.csv"`` where several files make one table.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfi.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

LINE = "line of the file"
SEPARATORS = {"::": "'::'", ";": "';'", "\t": "tabs", "|": "'|'", ",": "','", " ": "spaces"}
"""What separates cells, and how messages name it."""
_OF_TABLES = (";", "\t", "|", ",")
_MARKS = {
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"PK\x03\x04": "a zip archive, or a workbook such as Excel's: unpack it, or save it as csv",
    b"PAR1": "a parquet file: its name must end with .parquet",
    b"\xff\xfe": "UTF-16 text, expected UTF-8: `iconv -f utf-16 -t utf-8` converts it",
    b"\xfe\xff": "UTF-16 text, expected UTF-8: `iconv -f utf-16 -t utf-8` converts it",
}
"""How files begin that are no text, and what they are."""
_LONGEST_MARK = 4
_FEW = 3
_PIECE = 1 << 20


def read_csv(paths: list[Path], separator: str, name: str) -> pd.DataFrame:
    """One table of one or several files with a heading each.

    Args:
        paths: The files.
        separator: What separates cells.
        name: Of the data, for messages.

    Returns:
        The table; its index says where each row stands.

    Raises:
        InputError: If a file cannot be read, is separated by something else, or a row has too few or too many cells.
    """
    import pandas as pd

    frames = []
    for path in paths:
        frame = _read(path, separator, name)
        if len(paths) > 1:
            frame.index = pd.Index([f"{line} of {path.name}" for line in frame.index], name=frame.index.name)
        frames.append(frame)
    return frames[0] if len(frames) == 1 else pd.concat(frames)


def _read(path: Path, separator: str, name: str) -> pd.DataFrame:
    import pandas as pd

    try:
        check_start(path, name)
        _, heading = next(records(path, separator), (1, [""]))
        other = next((s for s in _OF_TABLES if len(heading) == 1 and s in heading[0] and s != separator), None)
        if other:
            raise InputError(
                f"data {name!r}: {path} looks separated by {SEPARATORS[other]}, expected {SEPARATORS[separator]} in"
                f" a file of the kind {path.suffix}"
            )
        refuse_twice(heading, f"{name!r}: {path}")  # pandas would call the second one a.1
        try:
            frame = pd.read_csv(path, sep=separator)
        except ValueError:  # pandas' parser errors are ValueErrors, and so are Python's of bytes that are no text
            check_text(path, name)
            check_cells(path, separator, len(heading), name)
            raise
    except (ValueError, OSError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"data {name!r}: {path} cannot be read: {error}") from error
    named = not isinstance(frame.index, pd.RangeIndex)  # rows begin with a name that has no heading, as R writes them
    if frame.shape[1] and frame.iloc[:, -1].isna().any():
        ends_empty = named and bool(frame.iloc[:, -1].isna().all())  # or each row ends with a separator
        check_cells(path, separator, len(heading) + (named and not ends_empty), name)
    frame.index = index_of(path, separator, len(frame))
    return frame


def refuse_twice(columns: Iterable[object], what: str) -> None:
    """Refuses columns of which two have one name; some may have none."""
    seen: dict[object, int] = {}
    for number, column in enumerate(columns, start=1):
        if column != "" and column in seen:
            raise InputError(f"data {what}: columns {seen[column]} and {number} are both called {str(column)!r}")
        seen[column] = number


def index_of(path: Path, separator: str, rows: int, *, heading: bool = True) -> pd.Index[Any]:
    """Where each row of a file stands; without a name if that cannot be told.

    Args:
        path: The file.
        separator: What separates its cells.
        rows: How many rows were read.
        heading: Whether its first line names the columns.
    """
    import pandas as pd

    if _count(path) == rows + heading:
        return pd.RangeIndex(1 + heading, 1 + heading + rows, name=LINE)
    found: list[int] = []
    with contextlib.suppress(csv.Error):  # a cell holds line breaks, or there are empty lines
        found = [line for line, _ in records(path, separator)][int(heading) :]
    return pd.Index(found, name=LINE) if len(found) == rows else pd.RangeIndex(rows)


def placed(frame: pd.DataFrame | pd.Series | None, wrong: Any) -> str:
    """Where the first of some rows stand, such as ``"lines 3, 7, 9 and 4 more"``.

    Args:
        frame: All rows; None where they are of an array.
        wrong: Truth value of each row, at least one of which is true.
    """
    rows = np.flatnonzero(np.asarray(wrong, dtype=bool)).tolist()
    places = [place(frame, row) for row in rows[:_FEW]]
    word = places[0].partition(" ")[0]
    numbers = [text.partition(" ")[2] for text in places]
    more = f" and {len(rows) - _FEW} more" if len(rows) > _FEW else ""
    if more or len(numbers) == 1:
        return f"{word}{'s' if more else ''} {', '.join(numbers)}{more}"
    return f"{word}s {', '.join(numbers[:-1])} and {numbers[-1]}"


def place(frame: pd.DataFrame | pd.Series | None, row: int) -> str:
    """Where a row stands: ``"line 5"`` of a file, ``"row 4"`` of a table, or ``"example 3"``, its index in an array."""
    if frame is None:
        return f"example {row}"
    return f"line {frame.index[row]}" if frame.index.name == LINE else f"row {row + 1}"


def missing(values: pd.Series, what: str, wrong: Any = None) -> str | None:
    """How many values are missing, and where; None if none is.

    Args:
        values: A column.
        what: What it is, such as ``"in column 'age'"``.
        wrong: Truth value of each row; None: whether its value is missing.
    """
    wrong = values.isna() if wrong is None else wrong
    count = int(np.asarray(wrong).sum())
    if not count:
        return None
    return f"{counted(count, 'value is', 'values are')} missing {what} ({placed(values, wrong)})"


def check_start(path: Path, name: str) -> None:
    """Refuses a file that is empty, or whose beginning is no UTF-8 text, and says what it seems to be.

    Args:
        path: The file; it is read up to the end of its first line that is not blank.
        name: Of the data, for messages.

    Raises:
        InputError: If so.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(_LONGEST_MARK)
        other = next((said for mark, said in _MARKS.items() if start.startswith(mark)), None)
        if other:
            raise InputError(f"data {name!r}: {path} is {other}")
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if line.strip():
                _check_line(line, number, path, name)
                return
    raise InputError(f"data {name!r}: {path} is empty")


def check_text(path: Path, name: str) -> None:
    """Refuses a file that is no UTF-8 text, once something else has found that it cannot be read.

    Args:
        path: The file.
        name: Of the data, for messages.

    Raises:
        InputError: If so, naming the line where it ceases to be text.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            _check_line(line, number, path, name)


def _check_line(line: bytes, number: int, path: Path, name: str) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"data {name!r}: {path}: line {number} is not UTF-8 text (byte {error.start + 1} of it); if it is"
            " Latin-1, `iconv -f latin1 -t utf-8` converts it"
        ) from error


def check_cells(path: Path, separator: str, expected: int, name: str) -> None:
    """Refuses a row of fewer or more cells; pandas takes cells that are not there for missing ones.

    Args:
        path: The file.
        separator: What separates cells.
        expected: How many a row has.
        name: Of the data, for messages.

    Raises:
        InputError: Naming the first such line.
    """
    with contextlib.suppress(csv.Error):  # such as a text that is longer than its reader takes
        for line, cells in records(path, separator):
            if len(cells) != expected:
                raise InputError(f"data {name!r}: {path}: line {line} has {len(cells)} cells, expected {expected}")


def _count(path: Path) -> int:
    """How many lines a file has, the last with or without its end."""
    ends, last = 0, b"\n"
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            ends, last = ends + piece.count(b"\n"), piece[-1:]
    return ends + (last != b"\n")


def records(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a file that are not empty, and the line on which each begins.

    Args:
        path: The file.
        separator: What separates cells; one of several characters knows no quotes.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        if len(separator) > 1:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text.rstrip("\r\n").split(separator)
            return
        reader, begins = csv.reader(file, delimiter=separator), 1
        for cells in reader:
            if cells:
                yield begins, cells
            begins = reader.line_num + 1
