"""Ctrl-C and SIGTERM in commands that cannot go on."""

from __future__ import annotations

import os
import signal

import pytest


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_every_command_says_that_it_was_ended(fedfi, tmp_path, monkeypatch, number, code, said):
    from fedfi.cli import merging

    monkeypatch.setattr(merging, "merge", lambda *_: os.kill(os.getpid(), number))
    before, ctrl_c = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs in the background ignore it
    try:
        assert fedfi("merge", "a.st", "-o", str(tmp_path / "m.st")) == (code, "", f"{said}\n")
    finally:
        signal.signal(signal.SIGINT, ctrl_c)
    assert signal.getsignal(signal.SIGTERM) is before
