"""Followers and distinct users right before and after global knowledge enters; grids with `kind = "followers"`.

A user's taste is the correlation, over items, of what it has (its training items) with how many users have an item.
Followers are the third of the users whose correlation is largest, distinct users the third where it is smallest.

With an interval T, tables are averaged at the end of rounds T, 2 T, ..., and the mean enters at the start of the next
round. Every user is judged after rounds k T - 1, k T and k T + 1: the last step is guidance and a round of training,
the one before it, beside which it is set, a round of training alone. A method that never exchanges is judged at the
rounds of its `interval` all the same.

The numbers that are judged are those that the grid shows, of the test items: `hr@K`, `ndcg@K`, `mrr@K`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedfi.data.ratings import RatingsData
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError, unknown
from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.divergence import deviation
from fedfi.federation.engine import Engine, Work
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import Packet
from fedfi.federation.run import run
from fedfi.federation.task import Task
from fedfi.parallel import Tell
from fedfi.reproducing.grid import Cell, Grid
from fedfi.reproducing.heading import heading
from fedfi.reproducing.jobs import Job, read_run_file, run_path

Values = dict[str, dict[str, float]]
"""Client -> metric -> value."""
Row = dict[str, Any]
GROUPS = ("distinct", "followers", "everyone")
NUMBERS = ("before", "after", "change", "change_by_training", "rose", "fell")


class Watched:
    """An engine that has clients judged after some rounds alone, and remembers each client's numbers."""

    def __init__(self, engine: Engine, rounds: Iterable[int]) -> None:
        self._engine, self._rounds = engine, frozenset(rounds)
        self.clients, self.evaluate = engine.clients, engine.evaluate
        self.memory, self.restore, self.close = engine.memory, engine.restore, engine.close
        self.values: dict[int, Values] = {}

    def map(self, work: Work, jobs: Iterable[tuple[str, Packet]], round: int) -> Iterator[Reply | Failure]:
        """As the engine; no client is judged after other rounds."""
        judging = work == "client_evaluate"
        if judging and round + 1 not in self._rounds:
            return
        for reply in self._engine.map(work, jobs, round):
            if judging and isinstance(reply, Reply):
                numbers = {k: float(v) for k, v in reply.packet.scalars.items()}
                self.values.setdefault(round + 1, {})[reply.client] = numbers
            yield reply


def popularity_correlation(data: RatingsData) -> dict[str, float]:
    """Each user's correlation of what it trains on with how many users train on an item."""
    count, sizes = len(data.items), np.array([len(own) for own in data.train])
    popularity = np.bincount(np.concatenate(data.train), minlength=count).astype(float)
    deviation = (popularity - popularity.mean()) / popularity.std()
    inside = np.array([deviation[own].sum() for own in data.train])
    share = sizes / count
    found = inside / count / np.sqrt(share * (1 - share))
    return dict(zip(data.users, found.tolist(), strict=True))


def groups_of(data: RatingsData) -> dict[str, list[str]]:
    """The users of each group."""
    taste = popularity_correlation(data)
    ordered = sorted(taste, key=lambda user: taste[user])
    third = len(ordered) // 3
    return dict(zip(GROUPS, (ordered[:third], ordered[len(ordered) - third :], ordered), strict=True))


def exchanges(values: Mapping[int, Values], groups: Mapping[str, list[str]], metric: str, interval: int) -> list[Row]:
    """One row an exchange and group.

    Args:
        values: What users were judged by, by round.
        groups: The users of each.
        metric: Which number.
        interval: Rounds from one exchange to the next.

    Raises:
        InputError: If there is no such number.
    """
    rows = []
    for at in sorted(r for r in values if r % interval == 0 and {r - 1, r + 1} <= values.keys()):
        for group, users in groups.items():
            known = values[at][users[0]]
            if metric not in known:
                raise InputError(f"shown: {unknown('number of a user', metric, known)}")
            earlier, before, after = ([values[r][u][metric] for u in users] for r in (at - 1, at, at + 1))
            rows.append(
                {
                    "round": at,
                    "group": group,
                    "metric": metric,
                    "users": len(users),
                    "before": statistics.mean(before),
                    "after": statistics.mean(after),
                    "change": statistics.mean(after) - statistics.mean(before),
                    "change_by_training": statistics.mean(before) - statistics.mean(earlier),
                    "rose": statistics.mean(a > b for a, b in zip(after, before, strict=True)),
                    "fell": statistics.mean(a < b for a, b in zip(after, before, strict=True)),
                }
            )
    return rows


def perform(job: Job, task: Task, tell: Tell) -> str:
    """Runs a cell and writes its file, whole or not at all.

    Returns:
        What it came to, in a line.

    Raises:
        InputError: If the method has no `interval`, or the data are no ratings.
    """
    settings, method = job.experiment.settings, job.experiment.algorithm()
    interval = getattr(method, "interval", None)
    if interval is None or not isinstance(task.data, RatingsData):
        raise InputError(f"{job.experiment.source}: kind = 'followers' needs ratings, and a method with an interval")
    at = [r for k in range(interval, settings.rounds, interval) for r in (k - 1, k, k + 1)]
    engine = Watched(LocalEngine(method, task, seed=settings.seed), at)
    result = run(
        method,
        task,
        rounds=settings.rounds,
        seed=settings.seed,
        engine=engine,
        evaluate=Evaluate(every=1),
        observe=tell,
    )
    groups = groups_of(task.data)
    rows = [row for metric in job.shown.values() for row in exchanges(engine.values, groups, metric, interval)]
    content = {"settings": job.tables, "failures": len(result.failures), "exchanges": rows}
    write_atomically(job.path, (json.dumps(content) + "\n").encode())
    return f"{len(rows)} rows"


def summary(grid: Grid, out: Path) -> list[Row]:
    """Means over the exchanges of a run, then means and standard deviations over seeds; a row a method and group."""
    rows = []
    for values in grid.settings_at():
        for method in grid.methods:
            cells = [Cell(method, grid.named(method, values), seed) for seed in grid.known_seeds]
            found = [read_run_file(run_path(out, c))["exchanges"] for c in cells if run_path(out, c).exists()]
            for metric in grid.head.shown.values():
                for group in GROUPS if found else ():
                    means = [_means(run, metric, group) for run in found]
                    rows.append({"setting": list(values), "method": method, **_over_seeds(means, metric, group)})
    return rows


def _means(run: Iterable[Row], metric: str, group: str) -> dict[str, float]:
    rows = [row for row in run if (row["metric"], row["group"]) == (metric, group)]
    if not rows:
        raise InputError(f"shown: {metric!r} was not measured when runs were made; choose another --out")
    return {number: statistics.mean(row[number] for row in rows) for number in NUMBERS}


def _over_seeds(means: list[dict[str, float]], metric: str, group: str) -> Row:
    return {
        "metric": metric,
        "group": group,
        "seeds": len(means),
        **{n: round(statistics.mean(m[n] for m in means), 5) for n in NUMBERS},
        **{f"{n}_sd": round(apart, 5) for n in NUMBERS if (apart := deviation([m[n] for m in means])) is not None},
    }


def write(grid: Grid, out: Path) -> str:
    """Writes `table.md` and `results.json`; gives back the first."""
    rows = summary(grid, out)
    text = table(grid, rows)
    write_atomically(out / "results.json", ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode())
    write_atomically(out / "table.md", text.encode())
    return text


def table(grid: Grid, rows: Iterable[Row]) -> str:
    """Markdown, in %: a part a setting and number."""
    lines = heading(grid)
    titles = [f"{', '.join(v)}: {name}" if v else name for v in grid.settings_at() for name in grid.head.shown]
    places = [(list(v), metric) for v in grid.settings_at() for metric in grid.head.shown.values()]
    for title, place in zip(titles, places, strict=True):
        lines += [
            f"### {title} in %, right before and after a mean enters",
            "",
            "| method | users | seeds | before | after | change | by training alone | rose | fell |",
            "|---" * 9 + "|",
        ]
        lines += [_line(row) for row in rows if (row["setting"], row["metric"]) == place]
        lines.append("")
    return "\n".join(lines)


def _line(row: Row) -> str:
    values = [f"{100 * row[number]:.2f}" for number in NUMBERS]
    values[2] += f" ± {100 * row['change_sd']:.2f}" if "change_sd" in row else ""
    return f"| {row['method']} | {row['group']} | {row['seeds']} | " + " | ".join(values) + " |"
