"""One run of a grid, and the file that is kept of it."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedfi.data import FederatedData
from fedfi.data.ratings import RatingsData
from fedfi.experiment import Experiment
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.failing import reasons
from fedfi.federation.loop import RunResult
from fedfi.federation.run import run
from fedfi.federation.spent import TOTAL
from fedfi.federation.task import Task
from fedfi.parallel import Tell
from fedfi.progress import loading
from fedfi.reproducing import predictions
from fedfi.reproducing.grid import digest, final_of
from fedfi.reproducing.jobs import Job

EVALUATED = ("global/", "levels/", "local/", "validation/", "ranking/")
KEPT = (
    *EVALUATED,
    "jaccard/",
    "cv_",
    "keep_lowest/",
    "train/loss",
    "packets/",
    "ciphertexts/",
    "privacy/",
    "merge/",
    "objective/",
    "permuted",
    "weight/",
    "units/",
    "tune/",
)
"""What numbers begin with of which a run's file has the curve."""


class Tasks:
    """Tasks of experiments, whose data are read and divided once for as long as they stay the same."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._key = ""
        self._data: FederatedData | RatingsData | None = None

    def of(self, experiment: Experiment, tables: Mapping[str, Any]) -> Task:
        """The task of an experiment with these settings."""
        key = digest({"data": tables["data"], "seed": tables["seed"]})
        if self._data is None or key != self._key:
            if self._data is None:
                loading(experiment.settings.data.name, self._quiet)
            self._data = None  # two at a time may be too many
            self._key, self._data = key, experiment.federate(experiment.load())
        return experiment.task(self._data)


def perform(job: Job, task: Task, tell: Tell) -> str:
    """Runs a cell and writes its file, whole or not at all.

    Returns:
        What it came to, in a line.
    """
    settings, algorithm = job.experiment.settings, job.experiment.algorithm()
    task = replace(task, shared=job.shared)
    result = run(
        algorithm,
        task,
        rounds=settings.rounds,
        seed=settings.seed,
        evaluate=settings.evaluate,
        min_replies=settings.min_replies,
        observe=tell,
    )
    content = content_of(result, job.tables)
    if job.predictions:
        predictions.keep(job.path.with_suffix(".npz"), algorithm, task, result)
    write_atomically(job.path, (json.dumps(content) + "\n").encode())
    there = {name: key for name, key in job.shown.items() if key in content["curves"]}
    numbers = {name: statistics.mean(final_of(content, key, 1)) for name, key in there.items()}
    told = ", ".join(f"{name} {number:.3f}" for name, number in numbers.items())
    why = "".join(f"; {reason}" for reason in reasons(map(asdict, result.failures)))
    return f"{told} ({content['seconds']:.0f} s){why}"


def content_of(result: RunResult, tables: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run: settings, totals, and curves `[[round, value], ...]` by number."""
    curves: dict[str, list[list[float]]] = {}
    for line in result.metrics:
        for key, value in line.items():
            if key.startswith(KEPT) and not key.endswith("examples") and not isinstance(value, str):
                curves.setdefault(key, []).append([line["round"], round(value, 6)])
    curves[TOTAL] = _traffic(result.metrics, _evaluated(curves))
    return {
        "settings": tables,
        "best": result.best,
        "failures": len(result.failures),
        "bytes_down": sum(line["bytes/down"] for line in result.metrics),
        "bytes_up": sum(line["bytes/up"] for line in result.metrics),
        "seconds": round(sum(line["seconds"] for line in result.metrics), 1),
        "curves": curves,
    }


def _evaluated(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[int]:
    """Rounds after which models were evaluated."""
    return sorted({int(at) for key, points in curves.items() if key.startswith(EVALUATED) for at, _ in points})


def _traffic(lines: Sequence[Mapping[str, Any]], rounds: Sequence[int]) -> list[list[float]]:
    """Bytes of both directions up to the end of some rounds."""
    sent = itertools.accumulate(line["bytes/down"] + line["bytes/up"] for line in lines)
    totals = dict(zip((line["round"] for line in lines), sent, strict=True))
    return [[at, totals[at]] for at in rounds]
