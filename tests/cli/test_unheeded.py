"""A reader of stdout or stderr that goes away costs no run."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fedfi.federation.record import read_lines
from fedfi.printing import unheeded

IN_PYTHON = """
import fedfi
train, test = fedfi.load("digits")
data = fedfi.federate(train, test, clients=3)
task = fedfi.Task(model=lambda: fedfi.build("mlp", data.spec), data=data, training=fedfi.Training(steps=1))
fedfi.run(fedfi.FedAvg(), task, rounds=3, out="a", progress=True)
"""


@pytest.mark.parametrize("command", [["-m", "fedfi", "run", "exp.toml", "--out", "a"], ["-c", IN_PYTHON]])
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_run_goes_on_when_nobody_reads(file: Path, command: list[str], kind: str) -> None:
    read, write = os.pipe() if kind == "pipe" else pty.openpty()
    os.close(read)
    try:
        stdin = subprocess.DEVNULL
        code = subprocess.run([sys.executable, *command], stdin=stdin, stdout=write, stderr=write).returncode
    finally:
        os.close(write)
    assert code == 0
    events = read_lines(Path("a/events.jsonl"))
    assert events[-1]["event"] == "done"


def test_what_is_read_still_arrives(file: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "fedfi", "list", "models"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "resnet18" in done.stdout


def test_a_full_disk_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("has no /dev/full")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "fedfi", "list", "models"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


def test_streams_of_others_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with unheeded():
        assert sys.stdout is before
        print("heard")
    assert capsys.readouterr().out == "heard\n"
