"""What FedFIbOS adds to a client's training and to the server, on ResNet-18 with group norm and batches of 20.

**Own work.** The real `client_update` of `FedFIbOS` and of `FedAvg` take turns on the same workbench, task and thread,
with few steps each. The task's loss, which both call once a step, notes the time, so that

- a step is the time from one loss to the next (median over all steps of all turns), and
- the rest is what a `client_update` takes beyond its whole steps: unpacking, the first forward and last backward
  pass, packing.

Own work in a round of K = 100 steps is (K - 1) times the difference of the two methods' steps, plus the difference of
their rests, plus what the server does more for a client: a cohort of ten, at the default mix of levels, is configured,
its replies checked and aggregated by both methods, and the difference divided by ten. Selection, packing, scatter,
running averages, their rows on disk and the diagnostics are all in it; a second figure leaves the diagnostics out,
which are switched on by default but are no part of the method. The figure is own work over the time of FedAvg's
`client_update` at K = 100. The client holds a quarter of the model; its own work hardly depends on how much, since
dense Fisher information covers everything.

FedAvg is a fair reference since it trains by the same loop. It trains the whole model, and so does FedFIbOS: an
unstructured mask saves traffic, not multiplications.

**Selection.** `select` with its defaults in FedFIbOS (one ranking, floor 0.5) over all 11.16 million selectable
entries, one thread, at two ratios and five kinds of scores, among them sorted ones and none but ties. The figure is
the slowest combination's median.

**Memory.** See `benchmarks.memory`.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Figure, Report, summary
from benchmarks.memory import STATUS
from benchmarks.resnet import client_of, task_of
from fedfi import Algorithm, Client, FedAvg, FedFIbOS, Packet, Reply
from fedfi.federation.task import cross_entropy
from fedfi.federation.workbench import Workbench
from fedfi.numerics.selection import select

ROOT = Path(__file__).resolve().parent.parent
NOMINAL = 100
"""Local steps K of the round that the figure is about."""

COHORT = [str(i) for i in range(10)]
RATIOS = (0.0625, 0.5)


def run(quick: bool = False) -> Report:
    """Measures all three on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        width, turns, steps = (0.25, 2, 3) if quick else (1.0, 7, 10)
        own, own_timings = _own_work(width, turns, steps)
        chosen, chosen_timings = _selection(width, turns)
    finally:
        torch.set_num_threads(threads)
    memory, memory_timings = _memory(width, 10 if quick else 100)
    timings = {"own_work": own_timings, "select": chosen_timings, "memory": memory_timings}
    sizes = {"width": width, "turns": turns, "steps": steps, "K": NOMINAL}
    return Report([*own, chosen, *memory], timings, sizes)


class Clock:
    """Notes the time of each loss; the loss itself is the usual one."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy per example."""
        self.times.append(time.perf_counter())
        return cross_entropy(outputs, targets)


def _own_work(width: float, turns: int, steps: int) -> tuple[list[Figure], dict[str, Any]]:
    clock = Clock()
    task = task_of(width, steps, clock.loss)
    client = client_of(task)
    # Only on the client's side is one level the same for all; the server's side has the default mix.
    jobs: dict[str, tuple[Algorithm[Any], Packet]] = {}
    for algorithm in (FedAvg(participation=1.0), FedFIbOS(participation=1.0, capacities={0.25: 1.0})):
        state = algorithm.init(task, _rng())
        ((_, packet),) = algorithm.configure(state, 0, ["0"], _rng())
        jobs[type(algorithm).__name__] = algorithm, packet
    step: dict[str, list[float]] = {name: [] for name in jobs}
    rest: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns + 1):
        for name, (algorithm, packet) in jobs.items():
            clock.times.clear()
            started = time.perf_counter()
            algorithm.client_update(packet, client)
            seconds = time.perf_counter() - started
            if turn:  # the first meets cold caches and torch's lazy imports
                step[name] += [after - before for before, after in pairwise(clock.times)]
                rest[name].append(seconds - (clock.times[-1] - clock.times[0]))
    server = _server(width, turns)

    plain = (NOMINAL - 1) * median(step["FedAvg"]) + median(rest["FedAvg"])
    more_step = median(step["FedFIbOS"]) - median(step["FedAvg"])
    more_rest = median(rest["FedFIbOS"]) - median(rest["FedAvg"])
    at_client = (NOMINAL - 1) * more_step + more_rest

    def share(variant: str) -> float:
        return 100 * (at_client + median(server[variant]) - median(server["FedAvg"])) / plain

    figures = [
        Figure(
            "submodel.own_work",
            f"FedFIbOS's own work / plain training, K = {NOMINAL}",
            share("FedFIbOS"),
            "%",
            at_most=5,
        ),
        Figure("submodel.own_work.method", "the same without diagnostics", share("without diagnostics"), "%"),
        Figure("submodel.own_work.step", "of it: a masked, measured step / plain step - 1", _more(step), "%"),
    ]
    timings = {
        "step_seconds": {name: summary(values) for name, values in step.items()},
        "rest_seconds": {name: summary(values) for name, values in rest.items()},
        "server_seconds_a_client": {name: summary(values) for name, values in server.items()},
        "plain_seconds_at_K": plain,
        "own_seconds_at_K": {"client": at_client, "client_steps": (NOMINAL - 1) * more_step, "client_rest": more_rest},
    }
    return figures, timings


def _more(step: dict[str, list[float]]) -> float:
    return 100 * (median(step["FedFIbOS"]) / median(step["FedAvg"]) - 1)


def _server(width: float, turns: int) -> dict[str, list[float]]:
    """Seconds a client that the server works in a round of ten, for FedAvg and for FedFIbOS."""
    task = task_of(width, steps=1)
    client = client_of(task)
    variants: dict[str, Algorithm[Any]] = {
        "FedAvg": FedAvg(participation=1.0),
        "FedFIbOS": FedFIbOS(participation=1.0),
        "without diagnostics": FedFIbOS(participation=1.0, diagnostics=False),
    }
    states = {name: algorithm.init(task, _rng()) for name, algorithm in variants.items()}
    made: dict[str, dict[int, Packet]] = {name: {} for name in variants}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(turns + 1):
        for name, algorithm in variants.items():
            gc.collect()
            states[name], taken = _server_round(algorithm, states[name], client, turn, made[name])
            if turn:  # the first round meets newcomers, who have no row yet
                seconds[name].append(taken / len(COHORT))
    return seconds


def _server_round(
    algorithm: Algorithm[Any], state: Any, client: Client, round: int, made: dict[int, Packet]
) -> tuple[Any, float]:
    """A whole round, of which only the server's part is timed.

    Replies are made once a level and kept in `made`, by the size of what was sent: clients of a level, and rounds,
    differ in which entries they hold but not in how many.
    """
    away = 0.0

    def replies() -> Iterator[Reply]:
        nonlocal away
        for name, sent in algorithm.configure(state, round, COHORT, _rng(round)):
            left = time.perf_counter()
            if sent.nbytes not in made:
                made[sent.nbytes] = algorithm.client_update(sent, client)
            reply = made[sent.nbytes]
            away += time.perf_counter() - left
            algorithm.reply_layout(state, sent).check(reply, name)
            yield Reply(name, reply, sent=sent)

    started = time.perf_counter()
    state, _ = algorithm.aggregate(state, round, replies(), _rng(round))
    return state, time.perf_counter() - started - away


def _selection(width: float, turns: int) -> tuple[Figure, dict[str, Any]]:
    layout = Workbench(task_of(width, steps=1).model()).layout
    ties = torch.randn(layout.pool, generator=_rng()).abs()
    seconds = {}
    for kind, scores in _scores(layout.pool):
        for ratio in RATIOS:
            taken = []
            for _ in range(turns):
                started = time.perf_counter()
                select(scores, ratio, sizes=layout.pool_sizes, floor=0.5, ties=ties)
                taken.append(time.perf_counter() - started)
            seconds[f"{kind}, {ratio:g}"] = taken
    worst = max(seconds, key=lambda name: median(seconds[name]))
    figure = Figure(
        "submodel.select",
        f"top-k over {layout.pool / 1e6:.2f} million parameters",
        median(seconds[worst]),
        "s",
        at_most=0.3,
        reason=f"slowest: {worst}",
    )
    return figure, {"entries": layout.pool} | {name: summary(taken) for name, taken in seconds.items()}


def _scores(size: int) -> Iterator[tuple[str, Tensor]]:
    """Kinds of scores: as Fisher information is spread, sorted both ways, mostly zero, all equal."""
    fisher = torch.randn(size, generator=_rng()).mul_(3).exp_()
    yield "log-normal", fisher
    rising = fisher.sort().values
    yield "rising", rising
    yield "falling", rising.flip(0)
    yield "99 % zeros", torch.where(torch.rand(size, generator=_rng()) < 0.01, fisher, 0.0)
    yield "all ties", torch.zeros(size)


def _memory(width: float, clients: int) -> tuple[list[Figure], dict[str, Any]]:
    name, what = "submodel.memory", f"server with {clients} ResNet-18 clients, resident"
    if not STATUS.exists():
        reason = f"this system has no {STATUS}"
        return [Figure(name, what, None, "GB", at_most=1.5, reason=reason)], {"not run": reason}
    command = [sys.executable, "-m", "benchmarks.memory", "--clients", str(clients), "--width", str(width)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    figures = [
        Figure(name, what, found["after"]["resident"] / 1e9, "GB", at_most=1.5),
        Figure(f"{name}.peak", "the same at its highest", found["after"]["peak"] / 1e9, "GB", at_most=1.5),
    ]
    return figures, found


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
