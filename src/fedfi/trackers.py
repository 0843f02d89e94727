"""Copies of a run's numbers for TensorBoard and MLflow, beside `metrics.jsonl`, which stays the record.

| kind | where | extra |
|---|---|---|
| ``"tensorboard"`` | the folder `tensorboard` of the run directory | `tensorboard` |
| ``"mlflow"`` | where MLflow is set to, such as by ``MLFLOW_TRACKING_URI``; its experiment ``fedfi`` | `mlflow` |

A run that is resumed goes on in the same TensorBoard folder and the same MLflow run, whose id is in `mlflow.json`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fedfi.errors import InputError, RunError
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.loop import Observer
from fedfi.validation import flat

Tracker = Literal["tensorboard", "mlflow"]

_EXPERIMENT = "fedfi"
_AT_ONCE = 100  # parameters that MLflow takes in one request
_LONGEST = 500  # characters of a parameter's value, a length that every version of MLflow takes


@contextmanager
def tracked(kinds: Iterable[Tracker], out: Path, config: Mapping[str, Any], done: int | None) -> Iterator[Observer]:
    """Copies what it yields is called with, a round's numbers, to each tracker; they are opened by the first round.

    Args:
        kinds: Where to.
        out: The run directory.
        config: The resolved experiment.
        done: Rounds behind us; None: the run is new.

    Raises:
        InputError: If a package is missing.
        RunError: If MLflow's server cannot be reached.
    """
    wanted = list(dict.fromkeys(kinds))
    for kind in wanted:
        if find_spec(_PACKAGES[kind]) is None:
            raise InputError(f"log = {kind} needs a package that is not installed: pip install 'fedfi[{kind}]'")
    opened: list[Observer] = []
    with ExitStack() as stack:

        def observe(line: Mapping[str, Any]) -> None:
            if not opened:
                opened.extend(stack.enter_context(_OPEN[kind](out, config, done)) for kind in wanted)
            for observer in opened:
                observer(line)

        yield observe


@contextmanager
def _tensorboard(out: Path, config: Mapping[str, Any], done: int | None) -> Iterator[Observer]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(out / "tensorboard"), purge_step=None if done is None else done + 1) as writer:

        def observe(line: Mapping[str, Any]) -> None:
            for key, value in _numbers(line).items():
                writer.add_scalar(key, value, line["round"])
            writer.flush()

        yield observe


@contextmanager
def _mlflow(out: Path, config: Mapping[str, Any], done: int | None) -> Iterator[Observer]:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient()
        run = _resumed(out)
        if run is None:
            experiment = client.get_experiment_by_name(_EXPERIMENT)
            place = experiment.experiment_id if experiment else client.create_experiment(_EXPERIMENT)
            run = client.create_run(place, run_name=out.name).info.run_id
            write_atomically(out / "mlflow.json", json.dumps({"run_id": run}).encode())
            parameters = [Param(key, str(value)[:_LONGEST]) for key, value in flat(config)]
            for start in range(0, len(parameters), _AT_ONCE):
                client.log_batch(run, params=parameters[start : start + _AT_ONCE])
        else:
            client.update_run(run, status="RUNNING")
    except MlflowException as error:
        raise RunError(f"log = mlflow: {error}") from error

    def observe(line: Mapping[str, Any]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(key, value, now, line["round"]) for key, value in _numbers(line).items()]
        try:
            for start in range(0, len(metrics), _AT_ONCE):
                client.log_batch(run, metrics=metrics[start : start + _AT_ONCE])
        except MlflowException as error:
            raise RunError(f"log = mlflow: {error}") from error

    try:
        yield observe
    except BaseException as error:
        with suppress(MlflowException):  # the first error is the one to tell
            client.set_terminated(run, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    client.set_terminated(run, "FINISHED")


_OPEN = {"tensorboard": _tensorboard, "mlflow": _mlflow}
_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}


def _resumed(out: Path) -> str | None:
    path = out / "mlflow.json"
    return str(json.loads(path.read_text())["run_id"]) if path.exists() else None


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a round, by names that both trackers take."""
    found = {k: v for k, v in line.items() if isinstance(v, int | float) and k != "round" and math.isfinite(v)}
    return {key.replace("@", "_at_"): float(value) for key, value in found.items()}
