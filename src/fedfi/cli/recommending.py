"""`fedfi recommend`: what a finished or interrupted run recommends."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedfi.cli.exits import quoted
from fedfi.cli.outputs import refuse_overwriting, refuse_within_record
from fedfi.cli.running import remembered
from fedfi.data.ratings import RatingsData
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError, RunError, counted, these, unknown
from fedfi.experiment import Experiment, of_run
from fedfi.federation.algorithm import ScoresItems
from fedfi.federation.checkpoint import write_output
from fedfi.federation.ranking import broken
from fedfi.federation.rng import keyed_generator
from fedfi.federation.samedata import check_same_data, recorded_ratings
from fedfi.federation.saved import last_state
from fedfi.federation.task import Task
from fedfi.importing import importing_from

_COLUMNS = ("user", "rank", "item", "score")


@dataclass(frozen=True)
class Ranked:
    """What a user is recommended.

    Attributes:
        user: Whose it is.
        items: Names and scores of the best items that the user does not have, best first.
        broken: Whether the scores are no numbers, so that nothing can be said.
    """

    user: str
    items: list[tuple[str, float]]
    broken: bool = False


def recommend(directory: Path, user: str | None, count: int, out: Path | None) -> None:
    """Prints a user's recommendations, or writes those of all users, or of one, as csv.

    Raises:
        InputError: If there is no such run or user, or the run is not one of recommendation.
        RunError: If no round is done, or the scores of everybody asked for are no numbers.
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
        refuse_overwriting(out, [str(experiment.settings.data.name)])
    task = _task(experiment, directory)
    data = task.data
    assert isinstance(data, RatingsData)  # `task` checks the kind
    if user is not None and user not in data.clients:
        raise InputError(f"--user {user}: {unknown('user', user, data.users)}")
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
    if not rounds:
        raise RunError(
            f"{directory}: its newest checkpoint is of no round yet, so nothing is learned; `fedfi resume"
            f" {quoted(directory)}` goes on"
        )
    users = list(data.users) if user is None else [user]
    found = list(_ranked(experiment.method, state, engine, data, users, rounds, experiment.settings.seed, count))
    _say_what_lacks(directory, found, len(data.items))
    chosen = experiment.settings.evaluate.best
    after = f"after round {rounds}{f', the best by {chosen}' if chosen else ''}"
    if out is None:
        for each in found:
            for rank, (item, score) in enumerate(each.items, start=1):
                print(f"{rank:3d}  {item}  {score:.4f}")
        print(f"{directory} {after}", file=sys.stderr)
        return
    rows = [(each.user, rank, item, score) for each in found for rank, (item, score) in enumerate(each.items, start=1)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_COLUMNS, *rows])
    write_output(out, text.getvalue().encode())
    print(f"{len(rows)} recommendations of {counted(len(users), 'user')}, {after}: {out}", file=sys.stderr)


def _task(experiment: Experiment, directory: Path) -> Task:
    """The run's task on the users and items that it began with, which need not be those of the file any more."""
    recorded = recorded_ratings(directory)
    if recorded is not None:
        return experiment.task(recorded)
    task = experiment.task()
    check_same_data(directory, task.data)
    return task


def _say_what_lacks(directory: Path, found: Sequence[Ranked], items: int) -> None:
    """Says on stderr for whom there is nothing, and why.

    Raises:
        RunError: If there is nothing for anybody since no score is a number.
    """
    lost = [each.user for each in found if each.broken]
    if lost:
        text = f"{directory}: the scores of {these('user', lost)} are no numbers, so nothing is recommended: training"
        text += " diverged; begin anew with a smaller learning_rate, or set evaluate.best to keep a round before that"
        if len(lost) == len(found):
            raise RunError(text)
        print(f"warning: {text}", file=sys.stderr)
    content = [each.user for each in found if not each.items and not each.broken]
    if content:
        verb = "has" if len(content) == 1 else "have"
        print(f"{these('user', content)} {verb} all {items} items: none is left to recommend", file=sys.stderr)


def _ranked(
    method: Any,
    state: Any,
    engine: LocalEngine,
    data: RatingsData,
    users: Sequence[str],
    rounds: int,
    seed: int,
    count: int,
) -> Iterator[Ranked]:
    jobs = method.configure_evaluation(state, users, keyed_generator(seed, "server", rounds, "recommend"))
    for user, packet in jobs:
        own = data.clients[user]
        scores = method.client_scores(packet, engine.client(user, packet, rounds)).double()
        if bool(broken(scores[None]).any()):  # as in an evaluation, where such a user counts as failed
            yield Ranked(user, [], broken=True)
            continue
        known = torch.tensor([*own.train.tolist(), own.validation, own.test])
        scores[known] = -torch.inf  # what a user has is not recommended again
        best = torch.sort(scores, descending=True, stable=True).indices[: min(count, len(scores) - len(known))]
        yield Ranked(user, [(data.items[item], float(scores[item])) for item in best.tolist()])
