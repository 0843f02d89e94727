"""What a weak client saves by a structured submodel: HeteroFL, ResNet-18 with group norm, batches of 20, one thread.

**Step.** The real `client_update` of `HeteroFL` at a sixteenth of the parameters and at all of them take turns; the
task's loss notes the time, so that a step is the time from one loss to the next. The figure is the ratio of medians.

**Memory.** The same `client_update` in processes of its own; a client's peak is the highest resident memory during its
second round, less what the process held before the client was made (interpreter, libraries, data, what finding the
channel groups left behind): packet, network, gradients, activations.

**Wiring.** Seconds to find the channel groups and to cut out a submodel, in a process that did neither before.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Figure, Report, summary
from benchmarks.memory import STATUS, resident
from benchmarks.resnet import SPEC, client_of, task_of
from fedfi import Packet
from fedfi.channels import discover
from fedfi.federation.task import cross_entropy
from fedfi.submodel.heterofl import HeteroFL

ROOT = Path(__file__).resolve().parent.parent
RATIOS = (1.0, 0.0625)
RESET = Path("/proc/self/clear_refs")


def run(quick: bool = False) -> Report:
    """Measures all three on one thread."""
    width, turns, steps = (0.25, 2, 3) if quick else (1.0, 5, 10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = _steps(width, turns, steps)
    finally:
        torch.set_num_threads(threads)
    apart = {str(ratio): [_apart(width, ratio) for _ in range(1 if quick else 3)] for ratio in RATIOS}
    full, small = (median(step[str(ratio)]) for ratio in RATIOS)
    figures = [
        Figure("structured.step", "a step at 1/16 of the parameters / at all", small / full, "x", at_most=0.2),
        _memory(apart),
        Figure("structured.discover", "finding the channel groups", _of(apart, "discover"), "s", at_most=5),
        Figure("structured.slice", "cutting out a submodel", _of(apart, "slice"), "s", at_most=0.5),
    ]
    timings = {"step_seconds": {name: summary(values) for name, values in step.items()}, "apart": apart}
    return Report(figures, timings, {"width": width, "turns": turns, "steps": steps})


def _job(width: float, ratio: float, steps: int, loss: Any) -> tuple[HeteroFL, Packet, Any]:
    task = task_of(width, steps, loss)
    algorithm = HeteroFL(participation=1.0, capacities={ratio: 1.0})
    state = algorithm.init(task, torch.Generator().manual_seed(0))
    ((_, packet),) = algorithm.configure(state, 0, ["0"], torch.Generator().manual_seed(0))
    return algorithm, packet.clone(), task


def _steps(width: float, turns: int, steps: int) -> dict[str, list[float]]:
    times: list[float] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        times.append(time.perf_counter())
        return cross_entropy(outputs, targets)

    found: dict[str, list[float]] = {str(ratio): [] for ratio in RATIOS}
    jobs = {ratio: _job(width, ratio, steps, loss) for ratio in RATIOS}
    for turn in range(turns + 1):
        for ratio, (algorithm, packet, task) in jobs.items():
            times.clear()
            algorithm.client_update(packet, client_of(task))
            if turn:
                found[str(ratio)] += [after - before for before, after in pairwise(times)]
    return found


def _of(apart: dict[str, list[dict[str, float]]], name: str) -> float:
    return median(one[name] for runs in apart.values() for one in runs)


def _memory(apart: dict[str, list[dict[str, float]]]) -> Figure:
    name, what = "structured.memory", "a client's peak memory at 1/16 of the parameters / at all"
    if not STATUS.exists():
        return Figure(name, what, None, "x", at_most=0.35, reason=f"this system has no {STATUS}")
    full, small = (median(one["peak"] - one["before"] for one in apart[str(ratio)]) for ratio in RATIOS)
    return Figure(name, what, small / full, "x", at_most=0.35)


def _apart(width: float, ratio: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.structured", "--width", str(width), "--ratio", str(ratio)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def release() -> None:
    """Gives freed memory back to the system, so that what comes next cannot hide in it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def main() -> None:
    """One process: the time that the wiring takes, and the client's peak memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=float, required=True)
    parser.add_argument("--ratio", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = task_of(options.width, 1).model()
    started = time.perf_counter()
    wiring = discover(module, SPEC.example())
    found = {"discover": time.perf_counter() - started}
    units = wiring.prefix(wiring.width_for(options.ratio))
    started = time.perf_counter()
    wiring.shrink(module, units)
    found["slice"] = time.perf_counter() - started
    del module, units, wiring

    algorithm, packet, task = _job(options.width, options.ratio, 3, cross_entropy)
    release()
    before = resident()["resident"] - packet.nbytes if STATUS.exists() else 0
    client = client_of(task)
    algorithm.client_update(packet, client)  # makes the network, and what torch keeps for convolutions
    release()
    if STATUS.exists():
        RESET.write_text("5")  # the peak so far is forgotten
        algorithm.client_update(packet, client)
        found |= {"before": before, "peak": resident()["peak"]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
