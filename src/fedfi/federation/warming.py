"""What is slow the first time is done before the first round, whose time would hold it otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from fedfi.federation.algorithm import Algorithm
from fedfi.federation.task import Task

OPTIMIZERS = "torch._dynamo"
"""What torch loads when a process makes its first optimizer: its compiler, which nothing here uses."""
SCIPY = ("scipy.optimize", "scipy.special")
"""What solves for an epsilon."""


def load_before(algorithm: Algorithm[object], task: Task) -> None:
    """Loads what rounds would load when they first need it.

    Args:
        algorithm: Whose rounds; methods within it are asked, too.
        task: Its recipe may need an optimizer of torch's; plain SGD is written out.
    """
    for name in dict.fromkeys(_needed(algorithm, task)):
        importlib.import_module(name)


def _needed(algorithm: object, task: Task) -> Iterator[str]:
    if task.training.optimizer != "sgd":
        yield OPTIMIZERS
    while isinstance(algorithm, Algorithm):
        yield from algorithm.loads()
        algorithm = getattr(algorithm, "algorithm", None)
