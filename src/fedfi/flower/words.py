"""What a program of Flower says of its failure, as one line: without frames, colours, log prefixes and tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterable

WIDE = {"COLUMNS": "4000", "TERMINAL_WIDTH": "4000"}
"""The environment in which Flower's commands break no line, and so no path, in their frames."""

_LAST = 3  # lines that are shown where nothing tells which of them matter
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_FRAME = re.compile(r"^[╭┌┏+][─━-]+ Error [─━-]*[╮┐┓+]\n(.*?)^[╰└┗+][─━-]+[╯┘┛+]$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"Exit Code: (\d+)\n(.*?)(?:^For more information\b|\Z)", re.MULTILINE | re.DOTALL)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b(?:: .*)?$", re.MULTILINE)
_LOGGED = re.compile(r"^(?:\d{4}-\d\d-\d\dT\S+ +)?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*(?:\[[^\]]*\]|:)\s*")


def words(text: str) -> str:
    """The reason in what a program printed, as one line.

    Flower's commands frame it; its services put it between an exit code and an address, or die with a traceback. Where
    none of these is found it is the last few lines.
    """
    plain = _COLOUR.sub("", text).replace("\r", "")
    plain = "\n".join(line.strip() if line.strip()[:1] in "╭┌┏│┃╰└┗" else line.rstrip() for line in plain.splitlines())
    if framed := _FRAME.findall(plain):
        found = " ".join(_lines(line.strip("│┃| ") for line in framed[-1].splitlines()))
    elif ended := _EXIT.findall(plain):
        code, reason = ended[-1]
        found = f"{_sentences(_lines(reason.splitlines()))} (Flower's exit code {code})"
    elif "Traceback (most recent call last)" in plain and (raised := _RAISED.findall(plain)):
        found = raised[-1]
    else:
        found = " | ".join(_lines(plain.splitlines())[-_LAST:])
    return found.strip() or "it says nothing"


def _lines(lines: Iterable[str]) -> list[str]:
    return [bare for line in lines if (bare := _LOGGED.sub("", line.strip()))]


def _sentences(lines: list[str]) -> str:
    """Lines of which some end a sentence without saying so."""
    text = ""
    for line in lines:
        ends = text and text[-1].isalnum() and line[:1].isupper()
        text += f"{'.' if ends else ''} {line}"
    return text.strip()
