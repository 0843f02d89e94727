"""Code blocks of Markdown pages, and how the tests run them: one mechanism for README, documentation and tutorials.

A block of Python runs in the names of those before it; a block of ``text`` behind it is what it prints. A block with a
``title`` is a file. In a block of ``console``, lines that begin with ``$ `` are commands, the others what they print.
In what is printed, ``...`` stands for anything. In a command, it stands for what an earlier one printed there.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[\w-]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"\n]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_CHECKER = doctest.OutputChecker()
_HOW = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: What stands behind the fence; empty if nothing does.
        title: Name of the file that it is, or None.
        text: What is in it, without indentation.
        line: Where it begins.
        mark: What a comment right above it says, such as ``"system"``, or None.
    """

    language: str
    title: str | None
    text: str
    line: int
    mark: str | None


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The blocks of a page in their order; those of one language alone, if it is given."""
    content = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(content):
        indent = len(match["indent"])
        text = "".join(line[indent:] or "\n" for line in match["text"].splitlines(keepends=True))
        line = content.count("\n", 0, match.start("language")) + 1
        found.append(Block(match["language"], match["title"], text, line, match["mark"]))
    return [b for b in found if language in (None, b.language)]


class Reader:
    """Who follows a page to the letter, in the working directory."""

    def __init__(self, page: Path, *, marks: frozenset[str] = frozenset()) -> None:
        """Begins a page.

        Args:
            page: The page.
            marks: Blocks with these marks are run, too; others that are marked are passed over.
        """
        self.page, self._marks = page, marks
        self._names: dict[str, Any] = {"__name__": "tutorial"}
        self._printed = ""

    def follow(self) -> None:
        """Runs the whole page, and compares what it prints with what the page says."""
        pending: str | None = None  # what a block of Python printed, which nothing need say
        for block in blocks(self.page):
            if block.mark is not None and block.mark not in self._marks:
                continue
            if block.title is not None:
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                pending = self._run(block)
                continue
            elif block.language == "console":
                self._commands(block)
            elif block.language == "text" and pending is not None:
                self._compare(block.line, block.text, pending)
            pending = None

    def _run(self, block: Block) -> str:
        said = io.StringIO()
        code = "\n" * block.line + block.text  # so that an error names the page's line
        with contextlib.redirect_stdout(said):
            exec(compile(code, str(self.page), "exec"), self._names)
        return said.getvalue()

    def _commands(self, block: Block) -> None:
        for line, command, expected in _told(block):
            said = self._command(line, self._filled(command))
            self._printed += said
            self._compare(line, expected, said)

    def _filled(self, command: str) -> str:
        if "..." not in command:
            return command
        pattern = ".*".join(re.escape(part) for part in command.split("..."))
        found = re.search(pattern, self._printed)
        assert found, f"{self.page.name}: nothing like {command!r} was printed before"
        return found[0]

    def _command(self, line: int, command: str) -> str:
        words = shlex.split(command, comments=True)
        if words[0] not in ("fedfi", "python"):
            done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{self.page.name}, line {line}: {command}\n{done.stdout}{done.stderr}"
            return done.stdout
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            if words[0] == "python":
                runpy.run_path(words[1], run_name="__main__")
            else:
                from fedfi.cli import main

                assert main(words[1:]) == 0, f"{self.page.name}, line {line}: {command}"
        return said.getvalue()

    def _compare(self, line: int, expected: str, said: str) -> None:
        if not expected.strip():
            return
        assert _CHECKER.check_output(expected, said, _HOW), (
            f"{self.page.name}, line {line}: the page says\n{expected}\nbut it prints\n{said}"
        )


def _told(block: Block) -> Iterator[tuple[int, str, str]]:
    """The commands of a console block: line, command (continued by a backslash at its end), what it prints."""
    lines = block.text.splitlines()
    number = 0
    while number < len(lines):
        assert lines[number].startswith("$ "), f"line {block.line + 1 + number}: a console block begins with a command"
        first, command = number, lines[number][2:]
        while command.endswith("\\"):
            number += 1
            command = command[:-1] + lines[number].strip()
        number += 1
        printed = []
        while number < len(lines) and not lines[number].startswith("$ "):
            printed.append(lines[number])
            number += 1
        yield block.line + 1 + first, command, "\n".join(printed) + "\n"
