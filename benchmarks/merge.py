"""What one-shot merging costs: the server's merge, its cost matrices, the clients' Fisher pass, the uplink.

**Merge.** `fuse` with its defaults (S = 8) on K independent models and diagonals: the 939,616-parameter CNN with K = 6,
and ResNet-18 with group norm with K = 10. Independent models are the worst case: no assignment repeats early. One
thread; discovery of the channel groups, which is done once a run, is timed apart.

**Cost matrices.** `PreparedCosts.to` on the CNN's widest layer (512 units of 1,600 weights) over a bare product of the
same sizes in the same precision: `[512, 3200] @ [3200, 512]` in float64. The two take turns.

**Fisher pass.** `empirical_fisher` over a client's examples in batches of 64, over one epoch of plain training (SGD,
forward, backward, step) of the same network on the same batches. The two take turns.

**Uplink.** Exact bytes of a client's reply, headers included, over FedAvg's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.figures import Figure, Report, summary
from fedfi import ClientData, Dataset, FedAvg, FederatedData, InputSpec, Task, Training, build
from fedfi import run as run_federation
from fedfi.channels import discover
from fedfi.federation.task import cross_entropy
from fedfi.federation.workbench import Workbench
from fedfi.numerics.diagonal import empirical_fisher
from fedfi.numerics.transport import PreparedCosts
from fedfi.oneshot.fedfiot import FedFiOT, fuse

SPEC = InputSpec(kind="image", shape=(3, 32, 32), classes=10)
BATCH = 64
NETWORKS: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "cnn": ("cnn", {}, 6, 3.0),
    "resnet18": ("resnet18", {"norm": "group"}, 10, 60.0),
}


def run(quick: bool = False) -> Report:
    """Measures all on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    turns, width, examples = (1, 0.25, 128) if quick else (5, 1.0, 1024)
    figures, timings = [], {}
    try:
        for part in (_merges, _costs, _fisher, _uplink):
            found, taken = part(turns, width, examples)
            figures += found
            timings[part.__name__.strip("_")] = taken
    finally:
        torch.set_num_threads(threads)
    return Report(figures, timings, {"turns": turns, "width": width, "examples": examples})


def _merges(turns: int, width: float, examples: int) -> tuple[list[Figure], dict[str, Any]]:
    figures, timings = [], {}
    for label, (name, options, count, target) in NETWORKS.items():
        benches = [Workbench(_network(name, width, seed, options)) for seed in range(count)]
        models = [{n: t.clone() for n, t in b.tree().items()} for b in benches]
        rng = torch.Generator().manual_seed(0)
        fishers = [{n: torch.rand(m[n].shape, generator=rng).pow(8) for n in benches[0].layout.names} for m in models]
        started = time.perf_counter()
        wiring = discover(benches[0].module.eval(), SPEC.example())
        discovery = time.perf_counter() - started
        taken = [_timed(partial(fuse, models, fishers, wiring)) for _ in range(turns if label == "cnn" else 1)]
        what = f"merge of {count} {label} of {benches[0].layout.size / 1e6:.2f} million parameters"
        figures.append(Figure(f"merge.{label}", what, median(taken), "s", at_most=target))
        timings[label] = {"merge": summary(taken), "discovery": discovery}
    return figures, timings


def _costs(turns: int, width: float, examples: int) -> tuple[list[Figure], dict[str, Any]]:
    units, inputs = int(512 * width), int(1600 * width)
    rng = torch.Generator().manual_seed(0)
    centre, values, weights = (torch.rand(units, inputs, generator=rng) for _ in range(3))
    prepared, left = PreparedCosts.of(values, weights), torch.cat([centre, centre], 1).double()
    ours, bare = _in_turns(lambda: prepared.to(centre), lambda: left @ prepared.factors, 4 * turns)
    figure = Figure("merge.costs", "cost matrix / bare product", median(ours) / median(bare), "x", at_most=2)
    return [figure], {"costs": summary(ours), "product": summary(bare)}


def _fisher(turns: int, width: float, examples: int) -> tuple[list[Figure], dict[str, Any]]:
    figures, timings = [], {}
    for label, (name, options, _, _) in NETWORKS.items():
        network = _network(name, width, 0, options)
        count = examples if label == "cnn" else min(examples, 2 * BATCH)
        rng = torch.Generator().manual_seed(0)
        images = torch.randn(count, *SPEC.shape, generator=rng).split(BATCH)
        labels = torch.randint(SPEC.classes, (count,), generator=rng).split(BATCH)
        batches = list(zip(images, labels, strict=True))
        measure, train = _in_turns(partial(_measure, network, batches), partial(_epoch, network, batches), turns)
        what, ratio = f"Fisher pass / training epoch, {label}", median(measure) / median(train)
        figures.append(Figure(f"merge.fisher.{label}", what, ratio, "x", at_most=2))
        timings[label] = {"fisher": summary(measure), "epoch": summary(train), "examples": count}
    return figures, timings


def _uplink(turns: int, width: float, examples: int) -> tuple[list[Figure], dict[str, Any]]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, *SPEC.shape, generator=rng)
    held = Dataset(inputs=images, targets=torch.arange(BATCH) % SPEC.classes, spec=SPEC).examples()
    train, test = held.subset(torch.arange(BATCH // 2)), held.subset(torch.arange(BATCH // 2, BATCH))
    data = FederatedData({"0": ClientData(train, test.subset(torch.arange(0)))}, test, None, SPEC)
    task = Task(model=lambda: build("cnn", SPEC, {"width": width}), data=data, training=Training(steps=1))
    sizes = {
        type(method).__name__: run_federation(method, task, rounds=1).metrics[0]["bytes/up"]
        for method in (FedFiOT(), FedAvg())
    }
    figure = Figure("merge.uplink", "upload / FedAvg's", sizes["FedFiOT"] / sizes["FedAvg"], "x", at_most=1)
    return [figure], {"bytes": sizes}


def _network(name: str, width: float, seed: int, options: dict[str, Any]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(name, SPEC, {"width": width, **options})


def _measure(network: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    empirical_fisher(network.eval(), batches, cross_entropy)


def _epoch(network: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    optimizer = torch.optim.SGD(network.train().parameters(), 1e-6, momentum=0.9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        cross_entropy(network(inputs), targets).mean().backward()
        optimizer.step()


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _in_turns(one: Callable[[], object], other: Callable[[], object], turns: int) -> tuple[list[float], list[float]]:
    one()  # cold caches
    other()
    pairs = [(_timed(one), _timed(other)) for _ in range(turns)]
    return [a for a, _ in pairs], [b for _, b in pairs]
