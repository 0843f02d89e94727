from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedfi.cli import main

DIGITS = """
rounds = 2
seed = 3

[data]
name = "digits"
clients = 6
partition = { by = "dirichlet", alpha = 1.0 }

[model]
name = "mlp"
hidden = [8]

[train]
learning_rate = 0.1
steps = 3

[algorithm]
name = "fedfibos"
participation = 0.5
capacities = { "1.0" = 0.5, "0.25" = 0.5 }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment of a second, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(DIGITS)
    return Path("exp.toml")


@pytest.fixture
def fedfi(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process; gives its exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def spawn(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts a command in a process of its own, which an interrupt reaches also where a shell's `&` has it ignored."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " from fedfi.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
