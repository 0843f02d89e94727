"""`fedfi recommend`: what a finished or interrupted run recommends."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fedfi.cli.outputs import refuse_overwriting, refuse_within_record
from fedfi.cli.running import remembered
from fedfi.data.ratings import RatingsData
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError, unknown
from fedfi.experiment import of_run
from fedfi.federation.algorithm import ScoresItems
from fedfi.federation.checkpoint import write_output
from fedfi.federation.rng import keyed_generator
from fedfi.federation.saved import last_state
from fedfi.importing import importing_from

_COLUMNS = ("user", "rank", "item", "score")


def recommend(directory: Path, user: str | None, count: int, out: Path | None) -> None:
    """Prints a user's recommendations, or writes those of all users as csv.

    Raises:
        InputError: If there is no such run or user, or the run is not one of recommendation.
    """
    if out is not None:
        refuse_within_record(out, [directory])
    with importing_from(*remembered([directory]), Path.cwd()):
        _recommend(directory, user, count, out)


def _recommend(directory: Path, user: str | None, count: int, out: Path | None) -> None:
    experiment = of_run(directory)
    if user is None and out is None:
        raise InputError("--user: is missing; name a user, or write those of all with --out FILE.csv")
    if experiment.method.data_kind != "ratings" or not isinstance(experiment.method, ScoresItems):
        name = experiment.settings.algorithm["name"]
        raise InputError(f"{experiment.source}: algorithm.name = {name!r}: recommends nothing")
    if out is not None:
        refuse_overwriting(out, [str(experiment.settings.data.get("name", ""))])
    task = experiment.task()
    assert isinstance(task.data, RatingsData)  # `task` checks the kind
    if user is not None and user not in task.data.clients:
        raise InputError(f"--user {user}: {unknown('user', user, task.data.users)}")
    engine = LocalEngine(experiment.method, task, seed=experiment.settings.seed)
    rounds, state = last_state(
        experiment.method,
        task,
        directory,
        experiment.settings.seed,
        engine,
        config=experiment.resolved(),
        written=experiment.tables,
    )
    users = list(task.data.users) if user is None else [user]
    rows = list(_rows(experiment.method, state, engine, task.data, users, rounds, experiment.settings.seed, count))
    if out is not None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([_COLUMNS, *rows])
        write_output(out, text.getvalue().encode())
        print(f"{len(rows)} recommendations of {len(users)} users: {out}", file=sys.stderr)
        return
    for _, rank, item, score in rows:
        print(f"{rank:3d}  {item}  {score:.4f}")


def _rows(
    method: Any,
    state: Any,
    engine: LocalEngine,
    data: RatingsData,
    users: Sequence[str],
    rounds: int,
    seed: int,
    count: int,
) -> Iterator[tuple[str, int, str, float]]:
    jobs = method.configure_evaluation(state, users, keyed_generator(seed, "server", rounds, "recommend"))
    for user, packet in jobs:
        own = data.clients[user]
        scores = method.client_scores(packet, engine.client(user, packet, rounds)).double()
        known = torch.tensor([*own.train.tolist(), own.validation, own.test])
        scores[known] = -torch.inf  # what a user has is not recommended again
        best = torch.sort(scores, descending=True, stable=True).indices[: min(count, len(scores) - len(known))]
        for rank, item in enumerate(best.tolist(), start=1):
            yield user, rank, data.items[item], float(scores[item])
