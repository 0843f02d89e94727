"""How long one waits for fedfi: for its help, for its import, and for the first round of the demo.

Every measurement is a new process, from before its start to what is waited for, with the files already in the
system's cache: one run of each comes first and is not counted. `import fedfi` is measured beside the start of the bare
interpreter, in turns, and beside the first use of `fedfi.run`, which loads torch. The first round is that of
``fedfi run examples/digits.toml``, done when the first line of its ``metrics.jsonl`` is complete (looked for every
5 ms); the run is then stopped.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Report, summary

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 120.0
"""Seconds after which the first round is given up."""


def run(quick: bool = False) -> Report:
    """Measures each in turns."""
    turns = 2 if quick else 9
    python, fedfi = sys.executable, str(Path(sys.executable).with_name("fedfi"))
    commands = {
        "help": [fedfi, "--help"],
        "interpreter": [python, "-c", "pass"],
        "import": [python, "-c", "import fedfi"],
        "use": [python, "-c", "import fedfi; fedfi.run"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in [*commands, "first_round"]}
    for turn in range(turns + 1):
        for name, command in commands.items():
            taken = _seconds(command)
            if turn:
                seconds[name].append(taken)
        if turn % 3 == 0 or quick:
            taken = _first_round(fedfi)
            if turn:
                seconds["first_round"].append(taken)
    pairs = zip(seconds["import"], seconds["interpreter"], strict=True)
    own = [imported - bare for imported, bare in pairs]
    figures = [
        Figure("startup.help", "fedfi --help", median(seconds["help"]), "s", at_most=0.5),
        Figure("startup.import", "import fedfi, beyond the interpreter's start", median(own), "s"),
        Figure("startup.use", "python -c 'import fedfi; fedfi.run', with torch", median(seconds["use"]), "s"),
        Figure(
            "startup.first_round", "first round of examples/digits.toml", median(seconds["first_round"]), "s", at_most=5
        ),
    ]
    return Report(figures, {name: summary(values) for name, values in seconds.items()}, {"turns": turns})


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _first_round(fedfi: str) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = Path(folder) / "run"
        metrics = out / "metrics.jsonl"
        command = [fedfi, "run", "examples/digits.toml", "--out", str(out), "--quiet"]
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            while not (metrics.exists() and b"\n" in metrics.read_bytes()):
                if process.poll() is not None and not metrics.exists():
                    raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
                if time.perf_counter() - started > TIME_LIMIT:
                    raise RuntimeError(f"no round of examples/digits.toml was done in {TIME_LIMIT:.0f} s")
                time.sleep(0.005)
            return time.perf_counter() - started
        finally:
            process.kill()
            process.wait()
