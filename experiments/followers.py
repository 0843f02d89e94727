"""Followers and distinct users right before and after global knowledge enters.

Usage: python experiments/followers.py experiments/recsys-followers.toml --seeds 0-4 -o results/recsys-followers

The file is an experiment with variants `[compare.LABEL]`; `--set data.name=...` changes a key. A user's taste is the
correlation, over items, of what it has (its training items) with how many users have an item. Followers are the third
of the users whose correlation is largest, distinct users the third where it is smallest.

With an interval T, tables are averaged at the end of rounds T, 2 T, ..., and the mean enters at the start of the next
round. Every user is judged after rounds k T - 1, k T and k T + 1: the last step is guidance and a round of training,
the one before it, beside which it is set, a round of training alone. A variant that never exchanges is judged at the
same rounds, by the interval of `[algorithm]`.

Each run is a file `runs/*.json`; those that are there, of the same settings, are kept. `table.md` and `results.json`
have, for each variant and group, means over exchanges and seeds: the metric before and after, the change, the change
in the round before, and the share of users for whom it rose and fell.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fedfi.cli.comparing import parse_seeds
from fedfi.cli.variants import variants
from fedfi.data.ratings import RatingsData
from fedfi.engines.local import LocalEngine
from fedfi.experiment import Experiment, load_experiment
from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.engine import Engine, Work
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import Packet
from fedfi.federation.run import run

Values = dict[str, dict[str, float]]  # client -> metric -> value


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
    return {"distinct": ordered[:third], "followers": ordered[len(ordered) - third :], "everyone": ordered}


def exchanges(values: Mapping[int, Values], groups: Mapping[str, list[str]], metric: str, interval: int) -> list[Any]:
    """One row an exchange and group."""
    rows = []
    for at in sorted(r for r in values if r % interval == 0 and {r - 1, r + 1} <= values.keys()):
        for group, users in groups.items():
            earlier, before, after = ([values[r][u][metric] for u in users] for r in (at - 1, at, at + 1))
            rows.append(
                {
                    "round": at,
                    "group": group,
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


def done(job: tuple[str, Experiment, int, str, Path]) -> str:
    """Runs a variant and writes its file."""
    label, experiment, interval, metric, path = job
    settings, method, task = experiment.settings, experiment.algorithm(), experiment.task()
    assert isinstance(task.data, RatingsData)
    at = [r for k in range(interval, settings.rounds, interval) for r in (k - 1, k, k + 1)]
    engine = Watched(LocalEngine(method, task, seed=settings.seed), at)
    result = run(method, task, rounds=settings.rounds, seed=settings.seed, engine=engine, evaluate=Evaluate(every=1))
    rows = exchanges(engine.values, groups_of(task.data), metric, interval)
    content = {
        "variant": label, "seed": settings.seed, "metric": metric, "settings": experiment.resolved(),
        "failures": len(result.failures), "exchanges": rows,
    }  # fmt: skip
    path.write_text(json.dumps(content) + "\n")
    return f"{path.stem}: {len(rows)} rows"


def summary(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Means over the exchanges of a run, then means and standard deviations over seeds."""
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    numbers = ("before", "after", "change", "change_by_training", "rose", "fell")
    for file in files:
        found = json.loads(file.read_text())
        for group in dict.fromkeys(row["group"] for row in found["exchanges"]):
            rows = [row for row in found["exchanges"] if row["group"] == group]
            means = {n: statistics.mean(row[n] for row in rows) for n in numbers}
            runs.setdefault((found["variant"], group), []).append(means)
    return [
        {
            "variant": variant,
            "group": group,
            "seeds": len(means),
            **{n: round(statistics.mean(m[n] for m in means), 5) for n in numbers},
            **{f"{n}_sd": round(statistics.stdev(m[n] for m in means), 5) for n in numbers if len(means) > 1},
        }
        for (variant, group), means in runs.items()
    ]


def table(rows: Iterable[Mapping[str, Any]], metric: str) -> str:
    """Markdown, in %."""
    lines = [
        f"{metric} in %, right before and after a mean enters.",
        "",
        "| variant | users | seeds | before | after | change | by training alone | rose | fell |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        spread = f" ± {100 * row['change_sd']:.2f}" if "change_sd" in row else ""
        values = [f"{100 * row[n]:.2f}" for n in ("before", "after", "change", "change_by_training", "rose", "fell")]
        values[2] += spread
        lines.append(f"| {row['variant']} | {row['group']} | {row['seeds']} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--metric", default="ndcg@20", help="of the test items: hr@K, ndcg@K, mrr@K")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    base = load_experiment(options.file, options.overrides)
    every = int(base.algorithm().interval)  # type: ignore[attr-defined]
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    jobs, paths = [], []
    for seed in parse_seeds(options.seeds):
        for label, variant in variants(base, None).items():
            changed = variant.changed({"seed": seed})
            interval = int(getattr(changed.algorithm(), "interval", None) or every)
            path = options.out / "runs" / f"{label}-{seed}.json"
            paths.append(path)
            before = json.loads(path.read_text()) if path.exists() else {}
            if (before.get("settings"), before.get("metric")) != (changed.resolved(), options.metric):
                jobs.append((label, changed, interval, options.metric, path))
    print(f"{len(jobs)} runs", flush=True)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("fork")) as pool:
        for line in pool.map(done, jobs):
            print(line, flush=True)
    rows = summary(paths)
    (options.out / "results.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    (options.out / "table.md").write_text(table(rows, options.metric))
    print(table(rows, options.metric))


if __name__ == "__main__":
    main()
