"""What federated recommendation costs: FedRKG with a table of 32 numbers an item at every user.

**FilmTrust's size.** 1,227 users, 2,059 items, some 35,000 ratings: the real set where `FEDFI_DATA` names it, else
made-up ratings of that size. A round is everything the engine does for all clients between two exchanges of tables:
drawing negatives, all steps, heads written back; in two threads. An evaluation scores all items for all users and ranks
the held-out ones.

**Against one client at a time.** The same engine and method with `cohorts=0`: plain autograd, client after client. It
is measured on every 16th user and scaled by the number of training examples; the vectorised round on all users, on one
thread too.

**Against memory.** The rows that a round touches are read and written once, by `index_select` and `index_copy_` in the
same blocks, on one thread: no round can be faster. The figure is the round, on one thread, over that.

**Exchange.** The same round with the two things that happen at guidance every time: all users take in the mean, without
a gate, and send their tables, which are averaged.

**Amazon-Video's size.** 1,372 users and 7,957 items: ten rounds and an evaluation, times a hundred.

**MovieLens-1M's size.** 6,040 users, 3,706 items, a million made-up ratings, in a process of its own: one round, and
the process's memory at its highest over the bytes of all item tables, without what it had before there were any.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.figures import Figure, Report, summary
from benchmarks.memory import resident
from fedfi import LocalEngine, Task, Training
from fedfi.data.interactions import Ratings, leave_one_out
from fedfi.data.negatives import stream
from fedfi.data.ratings import RatingsData
from fedfi.data.recommendation import load_ratings
from fedfi.engines.cohorts import BLOCK
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run as run_all
from fedfi.models.itemtable import ItemTable
from fedfi.recsys.fedrkg import FedRKG

ROOT = Path(__file__).resolve().parent.parent
DIMENSION = 32
METHOD = FedRKG(interval=None)
EXCHANGE = FedRKG(interval=1, beta=0.9, gate=False)


def run(quick: bool = False) -> Report:
    torch.set_num_threads(1)
    turns, every = (1, 8) if quick else (9, 16)
    data = made_up(40, 120, 10) if quick else filmtrust()
    figures: list[Figure] = []
    timings: dict[str, Any] = {}

    for threads in (2, 1):
        engine, state = begun(data, workers=threads)
        seconds = [timed(partial(train, engine, state, i + 1)) for i in range(turns)]
        judged = [timed(partial(judge, engine, state, i + 1)) for i in range(turns)]
        engine.close()
        timings |= {f"round, {threads} threads": summary(seconds), f"evaluation, {threads} threads": summary(judged)}
    both, alone = (median(timings[f"round, {n} threads"]["all"]) for n in (2, 1))
    figures.append(Figure("recsys.round", f"a round of {len(data.users)} users, two threads", both, "s", at_most=0.06))
    evaluated = timings["evaluation, 2 threads"]["median"]
    figures.append(Figure("recsys.evaluation", "full ranking for all of them", evaluated, "s", at_most=0.04))

    single = one_by_one(data, every)
    timings["one client at a time, scaled"] = single
    figures.append(Figure("recsys.speedup", "one client at a time over many", single / alone, "x", at_least=30))

    moved = [moving(data) for _ in range(turns)]
    timings["touched rows through memory"] = summary(moved)
    figures.append(Figure("recsys.memory", "a round over moving its rows", alone / median(moved), "x", at_most=4))

    exchanged = exchanging(data, turns)
    timings["round with an exchange, 2 threads"] = summary(exchanged)
    figures.append(Figure("recsys.exchange", "a round that takes in and sends all tables", median(exchanged), "s"))

    seconds = many_rounds(made_up(40, 300, 10) if quick else video(), rounds=2 if quick else 10)
    timings["amazon-video, rounds and an evaluation"] = summary(seconds)
    figures.append(
        Figure("recsys.video", "1,000 rounds of Amazon-Video's size", 100 * median(seconds), "s", at_most=240)
    )

    found = in_own_process(*((60, 200, 10) if quick else (6_040, 3_706, 166)))
    timings["ml-1m"] = found
    figures.append(Figure("recsys.ml1m", "a round at MovieLens-1M's size", found["seconds"], "s", at_most=4))
    figures.append(Figure("recsys.ml1m.memory", "memory over the item tables", found["memory"], "x", at_most=1.5))
    sizes = {"users": len(data.users), "items": len(data.items), "dimension": DIMENSION, "name": data.name}
    return Report(figures, timings, sizes)


def filmtrust() -> RatingsData:
    """The real ratings, or made-up ones of the same size."""
    return at_hand("filmtrust") or made_up(1_227, 2_059, 28)


def video() -> RatingsData:
    """The same of Amazon-Video."""
    return at_hand("amazon_video") or made_up(1_372, 7_957, 17)


def at_hand(name: str) -> RatingsData | None:
    """A set of `FEDFI_DATA`; nothing is downloaded."""
    if os.environ.get("FEDFI_DATA") and (Path(os.environ["FEDFI_DATA"]) / name).is_dir():
        return leave_one_out(load_ratings(name))
    return None


def made_up(users: int, items: int, each: int) -> RatingsData:
    """Users with a log-normal number of items, some `each` on average."""
    rng = np.random.default_rng(0)
    counts = np.clip((rng.lognormal(0, 0.7, users) * each / 1.28).astype(int), 5, items // 2)
    item = np.concatenate([rng.choice(items, count, replace=False) for count in counts])
    user = np.repeat(np.arange(users), counts)
    names = tuple(map(str, range(users))), tuple(map(str, range(items)))
    return leave_one_out(Ratings(*names, user, item.astype(np.int64), np.arange(len(item)) + 1e9, "made up"))


def begun(data: RatingsData, **engine: int) -> tuple[LocalEngine, Any]:
    """An engine whose clients all have their tables, and the server's state."""
    items = len(data.items)
    task = Task(
        model=lambda: ItemTable(items, DIMENSION, 1.0),
        data=data,
        training=Training(learning_rate=0.1, batch_size=256, epochs=1, clip_norm=1.0),
    )
    made = LocalEngine(METHOD, task, **engine)
    state = METHOD.init(task, keyed_generator(0, "server", "init"))
    if engine.get("cohorts", 1) != 0:
        jobs = METHOD.configure(state, 0, made.clients(), keyed_generator(0, "first"))
        received = {reply.client: 0 for reply in made.map("client_update", jobs, 0)}
        state = type(state)(state.mean, state.version, received)
    return made, state


def train(engine: LocalEngine, state: Any, round: int) -> None:
    jobs = METHOD.configure(state, round, engine.clients(), keyed_generator(round, "configure"))
    for _ in engine.map("client_update", jobs, round):
        pass


def judge(engine: LocalEngine, state: Any, round: int) -> None:
    jobs = METHOD.configure_evaluation(state, engine.clients(), keyed_generator(round, "evaluate"))
    for _ in engine.map("client_evaluate", jobs, round):
        pass


def exchanging(data: RatingsData, turns: int) -> list[float]:
    """Seconds of rounds in which all tables come and go; the first is none of them."""
    items, lines = len(data.items), list[dict[str, Any]]()
    task = Task(
        model=lambda: ItemTable(items, DIMENSION, 1.0),
        data=data,
        training=Training(learning_rate=0.1, batch_size=256, epochs=1, clip_norm=1.0),
    )
    last = Evaluate(every=10_000)
    run_all(EXCHANGE, task, rounds=turns + 2, workers=2, evaluate=last, observe=lines.append)
    return [line["seconds"] for line in lines[1:-1]]


def many_rounds(data: RatingsData, rounds: int) -> list[float]:
    """Seconds of some rounds and an evaluation, twice."""
    engine, state = begun(data, workers=2)

    def once() -> None:
        for round in range(rounds):
            train(engine, state, round + 1)
        judge(engine, state, rounds)

    seconds = [timed(once), timed(once)]
    engine.close()
    return seconds


def one_by_one(data: RatingsData, every: int) -> float:
    """Seconds that all users would take, from some of them."""
    engine, state = begun(data, cohorts=0)
    chosen = list(data.users)[::every]
    jobs = list(METHOD.configure(state, 0, chosen, keyed_generator(0, "first")))
    received = {reply.client: 0 for reply in engine.map("client_update", jobs, 0)}
    state = type(state)(state.mean, state.version, received)
    jobs = list(METHOD.configure(state, 1, chosen, keyed_generator(0, "second")))
    seconds = timed(lambda: [*engine.map("client_update", jobs, 1)])
    ours = sum(len(data.clients[user].train) for user in chosen)
    return seconds * sum(map(len, data.train)) / ours


def moving(data: RatingsData) -> float:
    """Seconds to read and write every row that a round touches, in the engine's blocks."""
    of, count = data.interactions, len(data.users)
    table = torch.zeros(min(BLOCK, count) * of.items, DIMENSION)
    total = 0.0
    for first in range(0, count, BLOCK):
        rows = np.arange(first, min(first + BLOCK, count))
        drawn = stream(of, rows, rows.astype(np.uint64))
        touched = torch.from_numpy(np.unique(drawn.client * of.items + drawn.item))
        total += timed(lambda touched=touched: table.index_copy_(0, touched, table.index_select(0, touched)))
    return total


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_own_process(users: int, items: int, each: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.recsys", str(users), str(items), str(each)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """One round of made-up ratings of a given size; prints seconds and memory."""
    torch.set_num_threads(1)
    data = made_up(*map(int, sys.argv[1:4]))
    assert data.interactions.gaps is not None  # made once, kept
    before = resident()["resident"]
    engine, state = begun(data, workers=2)
    seconds = timed(lambda: train(engine, state, 1))
    engine.close()
    after = resident()["peak"]  # getrusage would give that of the process which began this one, if it is higher
    tables = len(data.users) * len(data.items) * DIMENSION * 4
    print(json.dumps({"seconds": seconds, "memory": (after - before) / tables, "tables": tables}))


if __name__ == "__main__":
    main()
