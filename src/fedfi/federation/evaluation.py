"""Judging a model on examples: sums over fixed shards, so that the spread over workers changes no bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Self

import torch
from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import nn

from fedfi.data.dataset import Examples
from fedfi.data.federated import FederatedData
from fedfi.data.ratings import RatingsData
from fedfi.errors import InputError
from fedfi.federation.client import Client
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task
from fedfi.federation.trial import check_values
from fedfi.federation.workbench import Workbench
from fedfi.models.norms import has_static_norms, recompute_statistics, renew_statistics, running_norms
from fedfi.validation import OPTIONS, Checked

SHARD = 2_000
_BATCH = 100


@validated(frozen=True, kw_only=True, config=OPTIONS)
class Evaluate(metaclass=Checked):
    """When and what is judged (table `[evaluate]` of an experiment file); the last round always is."""

    every: Annotated[int, Field(ge=1, description="rounds from one evaluation to the next")] = 1
    levels: Annotated[bool, Field(description="judge the submodels of methods that make some")] = True
    local: Annotated[bool, Field(description="judge on the clients, each on its own test examples")] = True
    best: Annotated[
        str | None, Field(description="number of the validation by which the best round is chosen and its model kept")
    ] = None
    patience: Annotated[int | None, Field(ge=1, description="rounds without a better one that end the run")] = None

    @field_validator("best")
    @classmethod
    def _not_of_the_test(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("validation/"):
            nearest = f"validation/{value.rpartition('/')[2]}"
            raise ValueError(f"a round is chosen on the validation, not on the test (nearest valid: {nearest!r})")
        return value

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.patience is not None and self.best is None:
            raise ValueError(f"patience = {self.patience} needs best, the number that is waited for")
        return self


def sums(
    task: Task, module: nn.Module, examples: Examples, start: int = 0, stop: int | None = None
) -> dict[str, float]:
    """Sums of the task's evaluation over `examples[start:stop]`, and their number as ``"examples"``."""
    stop = len(examples) if stop is None else min(stop, len(examples))
    totals: dict[str, float] = {"examples": float(stop - start)}
    module.eval()
    with torch.inference_mode():
        for first in range(start, stop, _BATCH):
            positions = torch.arange(first, min(first + _BATCH, stop))
            inputs, targets = examples.batch(positions)
            outputs = module(inputs.to(task.device))
            for name, values in task.evaluation(outputs, targets.to(task.device)).items():
                check_values(name, values, len(targets))
                totals[name] = totals.get(name, 0.0) + values.double().sum().item()
    return totals


def means(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The means of summed-up parts; ``"examples"`` is their total."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    count = total.pop("examples", 0.0)
    if not count:
        raise InputError("there are no examples to evaluate on")
    return {name: value / count for name, value in total.items()} | {"examples": count}


def examples_of(data: FederatedData | RatingsData, split: str) -> Examples:
    """The server's examples of a split.

    Raises:
        InputError: If it holds none.
    """
    examples = None
    if isinstance(data, FederatedData):
        examples = data.test if split == "test" else data.validation
    if examples is None:
        raise InputError(f"the server holds no {split} examples")
    return examples


def shards(examples: Examples) -> list[tuple[int, int]]:
    """The fixed pieces in which a set of examples is judged."""
    return [(a, min(a + SHARD, len(examples))) for a in range(0, len(examples), SHARD)]


def take_statistics(task: Task, module: nn.Module, examples: Examples, *, renew: bool = False) -> None:
    """Gives batch norms, if there are any, the statistics of one pass over these examples.

    Args:
        task: Says on which device.
        module: The network.
        examples: Only their inputs are read.
        renew: Measure running statistics anew, too; otherwise those of static norms alone.
    """
    parts = torch.arange(len(examples)).split(_BATCH)
    if has_static_norms(module):
        recompute_statistics(module, (examples.batch(part)[0].to(task.device) for part in parts))
    if renew and running_norms(module):
        parts = tuple(part for part in parts if len(part) > 1)  # one example has no variance
        renew_statistics(module, (examples.batch(part)[0].to(task.device) for part in parts))


def renewed(task: Task, model: Tree) -> Tree:
    """A model by name with the running statistics of its batch norms measured anew on the server's examples.

    It is the same model where there are no such norms, or no examples.
    """
    if (own := task.examples.validation) is None:
        return model
    with keyed_global_rng(0, "renewed"):
        bench = Workbench(task.model(), task.device)
    if not running_norms(bench.module):
        return model
    bench.load(model)
    take_statistics(task, bench.module, own, renew=True)
    return model | {name: buffer.cpu().clone() for name, buffer in bench.buffers().items() if name in model}


def evaluate_model(packet: Packet, client: Client) -> dict[str, float | str]:
    """Judges the model that `packet` holds by name on the client's own test examples; means, and ``"examples"``.

    A client without test examples reports only that it has none.
    """
    client.workbench.load(packet.tensors)
    return evaluate_workbench(client)


def evaluate_workbench(client: Client, *, renew: bool = False) -> dict[str, float | str]:
    """Judges the client's workbench as it stands on the client's own test examples.

    Static batch norms take their statistics from the client's training examples.

    Args:
        client: Whose workbench and examples.
        renew: Whether others do so, too: their running statistics are of other networks than this one.
    """
    if len(client.data.test) == 0:
        return {"examples": 0.0}
    take_statistics(client.task, client.workbench.module, client.data.train, renew=renew)
    return {**means([sums(client.task, client.workbench.module, client.data.test)])}
