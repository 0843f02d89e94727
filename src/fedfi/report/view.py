"""A view: a function that reads what a run has recorded and makes a section of the page of it, or says that it does
not apply.

The page knows no method and no view by name. What a method records decides what is shown of it: numbers by the names of
their keys, tables by the names of exhibits (`federation.exhibits`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedfi.report.figures import Figure
from fedfi.report.reading import RunRecord


@dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
        source: A PNG as a data address.
        text: What it shows.
    """

    source: str
    text: str


@dataclass(frozen=True)
class Part:
    """A section about one run.

    Attributes:
        title: Its heading.
        figures: As plotly takes them.
        text: Before them, a paragraph.
        head: Of a table, if there is one.
        rows: Of it.
        pictures: Groups of pictures with a caption.
        keys: A pattern of the metrics that it shows, so that they are not shown again under other numbers.
    """

    title: str
    figures: Sequence[Figure] = ()
    text: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    pictures: Sequence[tuple[str, Sequence[Picture]]] = ()
    keys: str = r"(?!)"

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.rows or self.pictures)


View = Callable[[RunRecord], Part]
"""Gives an empty part where it does not apply."""
