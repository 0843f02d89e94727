"""The work that all contestants do: model, data, local recipe, and what they report.

Imports nothing but numpy and torch, since it is used in environments without fedfi.

Shapes: images ``[examples, 3, 32, 32]`` float32, labels ``[examples]`` int64.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLIENTS = 100
COHORT = 10
STEPS = 15
BATCH = 32
RATE = 0.1
HELD = STEPS * BATCH
"""Examples of a client: a round is one epoch, so that contestants without a notion of steps do the same."""
LEFT = 100
"""Examples that no client holds, for contestants that must judge their last model."""


def lenet() -> nn.Sequential:
    """A LeNet for 3 x 32 x 32 images: conv 6, conv 16, and linear 120, 84, 10; 62,006 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def write_data(directory: Path) -> None:
    """Random images around ten random patterns, once for all contestants."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, CLIENTS * HELD + LEFT)
    patterns = rng.standard_normal((10, 3, 32, 32), dtype=np.float32)
    images = np.lib.format.open_memmap(directory / "images.npy", "w+", np.float32, (len(labels), 3, 32, 32))
    for start in range(0, len(labels), HELD):
        part = labels[start : start + HELD]
        noise = rng.standard_normal((len(part), 3, 32, 32), dtype=np.float32)
        images[start : start + HELD] = noise + 0.5 * patterns[part]
    images.flush()
    np.save(directory / "labels.npy", labels)


def read_data(directory: Path) -> tuple[Tensor, Tensor]:
    """All images and labels; images stay in the file's pages, which processes share."""
    return (
        torch.from_numpy(np.load(directory / "images.npy", mmap_mode="c")),
        torch.from_numpy(np.load(directory / "labels.npy")),
    )


def rows_of(client: int) -> slice:
    """Which of the examples a client holds."""
    start = client * HELD
    return slice(start, start + HELD)


def train(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """A client's round as one writes it by hand: an epoch of SGD in random order; returns the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    total = 0.0
    for rows in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / STEPS


@dataclass(frozen=True)
class Order:
    """What a contestant is told.

    Attributes:
        data: Where `write_data` wrote.
        rounds: Number of rounds.
        workers: Number of worker processes, for those that have some.
        scratch: A directory for whatever it leaves behind.
    """

    data: Path
    rounds: int
    workers: int
    scratch: Path


def order() -> Order:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--scratch", type=Path, required=True)
    return Order(**vars(parser.parse_args()))


def report(order: Order, finished: list[float], model: Mapping[str, Any], **versions: str) -> None:
    """Prints the last line, which the benchmark reads.

    Args:
        order: What was ordered.
        finished: `time.monotonic()` at the end of each round; one clock for all processes.
        model: The last global model, whose loss shows that all contestants learned the same.
        versions: Versions of what the contestant is built on.
    """
    if len(finished) != order.rounds:
        raise RuntimeError(f"{len(finished)} rounds were done, {order.rounds} ordered")
    judged = lenet()
    judged.load_state_dict({name: torch.as_tensor(value) for name, value in model.items()})
    images, labels = (part[: 10 * HELD] for part in read_data(order.data))
    with torch.inference_mode():
        loss = functional.cross_entropy(judged(images), labels).item()
    content = {"finished": finished, "loss": loss, "versions": versions | {"torch": torch.__version__}}
    print("\n" + json.dumps(content), flush=True)


now = time.monotonic
