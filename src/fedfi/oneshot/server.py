"""What the server of a merge has: a network to try models on, its wiring, and perhaps examples of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedfi.channels import Wiring, discover
from fedfi.data.dataset import Dataset, Examples
from fedfi.data.federated import FederatedData
from fedfi.errors import InputError
from fedfi.federation.evaluation import sums, take_statistics
from fedfi.federation.packet import Tree
from fedfi.federation.task import Task
from fedfi.federation.workbench import Workbench
from fedfi.models import InputSpec
from fedfi.models.norms import renew_statistics, running_norms

_BATCH = 100


@dataclass(frozen=True, eq=False)
class Server:
    """A network and the server's examples.

    Attributes:
        task: Model factory, loss, evaluation; its `data.validation` are the server's examples, if there are any.
        bench: An instance of the network; whoever uses it loads it first.
        settles: Whether models are judged with batch norms measured anew, since that is how they will be deployed.
        absent: Why there are no examples where there are none, for errors.
    """

    task: Task
    bench: Workbench
    settles: bool = False
    absent: str = "data.validation is 0"

    @property
    def examples(self) -> Examples | None:
        """The server's own examples."""
        return self.task.examples.validation

    def without_examples(self, why: str) -> InputError:
        """The error that there are no examples, and why they are needed, such as ``"rescale measures units on"``."""
        return InputError(f"{why} the server's examples, but there are none ({self.absent})")

    @cached_property
    def wiring(self) -> Wiring:
        """The channel groups of the network."""
        self.bench.module.eval()
        return discover(self.bench.module, self.task.data.spec.example())

    def loaded(self, model: Mapping[str, Tensor]) -> nn.Module:
        """The network with these values, in evaluation mode."""
        self.bench.load(model)
        if self.examples is not None:
            take_statistics(self.task, self.bench.module, self.examples)
        return self.bench.module.eval()

    def score(self, model: Mapping[str, Tensor]) -> float:
        """The accuracy on the server's examples, or what stands for it: minus the loss; larger is better.

        Raises:
            ValueError: If the server has no examples.
        """
        if self.examples is None:
            raise ValueError("the server has no examples to judge a model on")
        return score_of(self.task, self.loaded(self.settled(dict(model)) if self.settles else model), self.examples)

    def inputs(self, limit: int | None = None) -> list[Tensor]:
        """The inputs of the server's first examples, in batches; none where it has none."""
        if self.examples is None:
            return []
        count = min(limit or len(self.examples), len(self.examples))
        return [self.examples.batch(p)[0].to(self.task.device) for p in torch.arange(count).split(_BATCH)]

    def settled(self, model: Tree) -> Tree:
        """The model with statistics of its batch norms measured anew on the server's examples, if there are both.

        The means of parties' statistics are not those of the merged network; one pass over the server's inputs is.
        """
        batches = [x for x in self.inputs() if len(x) > 1] if running_norms(self.bench.module) else []
        if not batches:
            return model
        renew_statistics(self.loaded(model), batches)
        return model | {n: t.clone() for n, t in self.bench.buffers().items()}


def task_of(make: Callable[[], nn.Module], spec: InputSpec, validation: Examples | None = None) -> Task:
    """The task of whoever merges what others trained: a network, and examples of its own, if there are any.

    Args:
        make: Makes the network.
        spec: What it is fed.
        validation: The examples.
    """
    inputs = spec.example(1)
    inputs = inputs.int() if spec.kind == "text" else inputs
    nothing = Dataset(inputs, torch.zeros(1, dtype=torch.int64), spec).examples(torch.arange(0))
    return Task(model=make, data=FederatedData({}, test=nothing, validation=validation, spec=spec))


def score_of(task: Task, module: nn.Module, examples: Examples) -> float:
    """Accuracy, or minus the loss where the task has none."""
    totals = sums(task, module, examples)
    return totals["accuracy"] / totals["examples"] if "accuracy" in totals else -totals["loss"] / totals["examples"]


def best_of(candidates: Sequence[Tree], server: Server) -> tuple[int, list[float]]:
    """The position of the model that scores best on the server's examples, of equals the first, and all scores.

    Without examples it is the first, and there are no scores.
    """
    if server.examples is None or len(candidates) == 1:
        return 0, []
    scores = [server.score(model) for model in candidates]
    return max(range(len(scores)), key=lambda i: (scores[i], -i)), scores
