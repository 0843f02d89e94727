"""What Flower's programs print when they fail, as one line."""

from __future__ import annotations

import pytest

from fedfi.flower.words import words

FRAMED = """\
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ The SuperLink cannot be reached. Is it running, and is the                   │
│ address right?                                                               │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
ASCII = """\
+- Error ----------------------------------------------------------------------+
| Public key file 'missing.pub' does not exist.                                |
+------------------------------------------------------------------------------+
"""
EXIT = """\
\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode
\x1b[91mERROR \x1b[0m:     Exit Code: 500
Invalid line format
Node authentication requires a valid key. Please look at
the file.

For more information, visit: <https://flower.example/500.html>
"""
TRACEBACK = """\
2026-01-02T03:04:05.678Z INFO [uvicorn.error] Waiting for application startup.
Traceback (most recent call last):
  File "subprocess.py", line 1950, in _execute_child
    raise child_exception_type(errno_num, err_msg, err_filename)
FileNotFoundError: [Errno 2] No such file or directory: 'flower-superexec'

2026-01-02T03:04:05.678Z ERROR [uvicorn.error] Application startup failed. Exiting.
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FRAMED, "The SuperLink cannot be reached. Is it running, and is the address right?"),
        (
            "Usage: flwr supernode register [OPTIONS]\nTry 'flwr supernode register -h' for help.\n" + FRAMED,
            "The SuperLink cannot be reached. Is it running, and is the address right?",
        ),
        (
            "\x1b[31m" + FRAMED.replace("\n", "\x1b[0m\n\x1b[31m") + "\x1b[0m",
            "The SuperLink cannot be reached. Is it running, and is the address right?",
        ),
        (ASCII, "Public key file 'missing.pub' does not exist."),
        (
            EXIT,
            "Invalid line format. Node authentication requires a valid key. Please look at the file."
            " (Flower's exit code 500)",
        ),
        (TRACEBACK, "FileNotFoundError: [Errno 2] No such file or directory: 'flower-superexec'"),
        (
            "usage: a [-h]\n  more\na: error: argument --port: 'x'\n",
            "usage: a [-h] | more | a: error: argument --port: 'x'",
        ),
        ("INFO :      a\nERROR :     the port is taken\n", "a | the port is taken"),
        ("  \n", "it says nothing"),
        ("", "it says nothing"),
    ],
)
def test_the_reason_is_taken_out(text, line):
    assert words(text) == line


def test_flowers_own_frame(tmp_path):
    """Whatever the width of the terminal: no path is broken."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedfi[flower]'")
    from fedfi.errors import RunError
    from fedfi.flower.local import LocalFederation

    there = LocalFederation.create(tmp_path / "federation", 1, insecure=True)
    missing = tmp_path / ("a-long-name-" * 10) / "node.pub"
    with pytest.raises(RunError) as error:
        there.register(missing)
    assert str(error.value) == f"{missing}: cannot be registered: Public key file '{missing}' does not exist."
