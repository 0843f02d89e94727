"""What the engine costs: `fedfi.run` against a hand-written loop, pfl-research and Flower, all doing the same work.

The work (`contestants/work.py`) is federated averaging: 100 clients that hold 480 images each, 10 of them a round,
15 local steps of 32 images with plain SGD, a LeNet of 62,006 parameters, no evaluation. It is small, so that what
surrounds the training shows. Contestants:

| name | what |
|---|---|
| plain | a loop in PyTorch, with nothing that federated averaging does not need |
| fedfi-1 | `fedfi.run(workers=1)` |
| fedfi-2 | `fedfi.run(workers=2)` |
| pfl | pfl-research's simulated backend, one process |
| flower-2 | Flower's simulation on Ray, two workers of one core |

Why the comparison is fair: every contestant runs in a fresh process; reads the same file of images into memory;
uses one torch thread a worker; draws 10 of 100 clients; loads the global model into a model that it keeps, takes 15
steps with `torch.optim.SGD`, and averages. fedfi, plain and Flower visit a client's images in a new random order each
round; pfl takes them in file order, which saves it that work. Flower's client is the plain loop's own training
function with model and data kept in the worker, which is more than its tutorials do. Flower and pfl are told to
evaluate nothing. At the end each judges its model on all images, outside of the clock: the losses, in the results
file, are about the same, so all did the same work.

Two times are taken of each run, on one clock for all processes: a round's steady time, the median over rounds but the
first; and the total from before the process is started to the end of the last round, with the interpreter's start,
all imports, reading the data and starting workers. Contestants take turns, and a figure is the median over turns of
the ratio within a turn, so that a slow minute of the machine meets both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contestants import work
from benchmarks.figures import Figure, Report, cores, summary

ROOT = Path(__file__).resolve().parent.parent
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
TIME_LIMIT = 900.0
"""Seconds after which a contestant is given up."""

_QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True)
class Contestant:
    """A module of `benchmarks.contestants`, and how it is started."""

    module: str
    workers: int
    foreign: bool = False  # needs the packages of the `bench` extra


CONTESTANTS = {
    "plain": Contestant("plain", 1),
    "fedfi-1": Contestant("with_fedfi", 1),
    "fedfi-2": Contestant("with_fedfi", 2),
    "pfl": Contestant("with_pfl", 1, foreign=True),
    "flower-2": Contestant("with_flower", 2, foreign=True),
}


@dataclass(frozen=True)
class Run:
    """One contestant's turn; seconds.

    Attributes:
        total: From before the process was started to the end of the last round.
        first: From before the process was started to the end of the first round.
        rounds: Each round but the first.
        loss: Of the last model.
        versions: Of what was measured.
    """

    total: float
    first: float
    rounds: list[float]
    loss: float
    versions: Mapping[str, str]

    @property
    def steady(self) -> float:
        """The time of a round once everything runs."""
        return median(self.rounds)


def run(quick: bool = False) -> Report:
    """Measures all contestants."""
    rounds, turns = (3, 1) if quick else (20, 5)
    runs: dict[str, list[Run]] = {name: [] for name in CONTESTANTS}
    reasons: dict[str, str] = {}
    if cores() < 2:
        reasons |= dict.fromkeys(("fedfi-2", "flower-2"), "two workers need two cores")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        work.write_data(Path(folder))
        for turn in range(turns):
            first = turn % len(CONTESTANTS)
            for name in [*list(CONTESTANTS)[first:], *list(CONTESTANTS)[:first]]:
                if name in reasons:
                    continue
                found = measure(CONTESTANTS[name], Path(folder), rounds)
                if isinstance(found, str):
                    reasons[name], runs[name] = found, []
                else:
                    runs[name].append(found)
    sizes = {
        "clients": work.CLIENTS,
        "cohort": work.COHORT,
        "steps": work.STEPS,
        "batch": work.BATCH,
        "rounds": rounds,
        "turns": turns,
    }
    return Report(_figures(runs, reasons), _timings(runs, reasons), sizes)


def measure(contestant: Contestant, data: Path, rounds: int) -> Run | str:
    """Lets a contestant have its turn; says why, if it could not."""
    python = BENCH_PYTHON if contestant.foreign and BENCH_PYTHON.exists() else Path(sys.executable)
    with tempfile.TemporaryDirectory(prefix="b-") as scratch:  # a short name: Ray puts sockets into it
        command = [str(python), "-m", f"benchmarks.contestants.{contestant.module}"]
        command += ["--data", str(data), "--rounds", str(rounds), "--workers", str(contestant.workers)]
        command += ["--scratch", scratch]
        environment = {**os.environ, **_QUIET, "FLWR_HOME": scratch}
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"took longer than {TIME_LIMIT:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    finished = said["finished"]
    return Run(
        total=finished[-1] - started,
        first=finished[0] - started,
        rounds=[after - before for before, after in pairwise(finished)],
        loss=said["loss"],
        versions=said["versions"],
    )


def _figures(runs: Mapping[str, list[Run]], reasons: Mapping[str, str]) -> list[Figure]:
    def steady(run: Run) -> float:
        return run.steady

    def total(run: Run) -> float:
        return run.total

    def figure(
        name: str, what: str, above: str, below: str, of: Callable[[Run], float], **target: float | None
    ) -> Figure:
        missing = [reasons[c] for c in (above, below) if c in reasons]
        if missing:
            return Figure(f"engine.{name}", what, None, "x", reason=missing[0], **target)
        ratios = [of(a) / of(b) for a, b in zip(runs[above], runs[below], strict=True)]
        return Figure(f"engine.{name}", what, median(ratios), "x", **target)

    return [
        figure("one_worker", "a round: fedfi, 1 worker / plain loop", "fedfi-1", "plain", steady, at_most=1.05),
        figure("one_worker.total", "total: fedfi, 1 worker / plain loop", "fedfi-1", "plain", total),
        figure("two_workers", "a round: fedfi, 1 worker / 2 workers", "fedfi-1", "fedfi-2", steady, at_least=1.8),
        figure("two_workers.total", "total: fedfi, 1 worker / 2 workers", "fedfi-1", "fedfi-2", total),
        figure("pfl", "a round: pfl-research / fedfi, 1 worker", "pfl", "fedfi-1", steady, at_least=1.0),
        figure("pfl.total", "total: pfl-research / fedfi, 1 worker", "pfl", "fedfi-1", total),
        figure("flower", "total: Flower / fedfi, 2 workers each", "flower-2", "fedfi-2", total, at_least=2.5),
        figure("flower.steady", "a round: Flower / fedfi, 2 workers each", "flower-2", "fedfi-2", steady),
    ]


def _timings(runs: Mapping[str, list[Run]], reasons: Mapping[str, str]) -> dict[str, Any]:
    timings: dict[str, Any] = {}
    for name, turns in runs.items():
        if name in reasons:
            timings[name] = {"not run": reasons[name]}
            continue
        timings[name] = {
            "total_seconds": summary([turn.total for turn in turns]),
            "first_round_done_seconds": summary([turn.first for turn in turns]),
            "round_seconds": summary([turn.steady for turn in turns]),
            "rounds": [turn.rounds for turn in turns],
            "loss": [turn.loss for turn in turns],
            "versions": dict(turns[0].versions),
        }
    return timings
