"""What happens in a federation that is no failure of a client: told in the log at once, kept for the run directory."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

_LOG = logging.getLogger("flwr.fedfi")


@dataclass(frozen=True)
class Note:
    """Something that happened.

    Attributes:
        text: What, in a line.
        odd: Whether it is worth a warning; a node that joins is not.
        time: When, in seconds since 1970.
    """

    text: str
    odd: bool = True
    time: float = field(default_factory=time.time, compare=False)

    def __str__(self) -> str:
        return self.text


class Notes:
    """Notes of a federation, in the order in which things happened."""

    def __init__(self) -> None:
        self._kept: list[Note] = []
        self.last = ""
        """The text of the newest note, whether it was taken or not."""

    def tell(self, text: str) -> None:
        """Notes what belongs to the course of things."""
        self._note(Note(text, odd=False))

    def warn(self, text: str) -> None:
        """Notes what somebody should look at."""
        self._note(Note(text))

    def take(self) -> list[Note]:
        """The notes, which are gone afterwards."""
        taken, self._kept = self._kept, []
        return taken

    def _note(self, note: Note) -> None:
        self._kept.append(note)
        self.last = note.text
        _LOG.log(logging.WARNING if note.odd else logging.INFO, "%s", note.text)
