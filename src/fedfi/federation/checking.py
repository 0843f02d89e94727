"""What `fedfi.run` is given, checked before anything runs; and what it says of the data at the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfi.arguments import as_call, described, expect
from fedfi.data.federated import FederatedData
from fedfi.data.ratings import RatingsData
from fedfi.errors import InputError, about, counted, some
from fedfi.federation.algorithm import Algorithm, EvaluatesClients, NotesOnClients
from fedfi.federation.divergence import Expected
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task, cross_entropy
from fedfi.models.norms import names_of_running_norms


def check_method_and_task(algorithm: object, task: object) -> None:
    """Checks that both are what they should be, and that the method learns from the task's kind of data.

    Raises:
        InputError: If not.
    """
    if isinstance(algorithm, Task) and isinstance(task, Algorithm):
        raise InputError("the first argument is the task and the second the method: swap them, run(method, task, ...)")
    if not isinstance(algorithm, Algorithm):
        given = algorithm.__name__ if isinstance(algorithm, type) else described(algorithm)
        raise InputError(f"algorithm is {given}, expected an instance of a method, such as fedfi.FedAvg()")
    expect("task", task, Task, "a fedfi.Task")
    assert isinstance(task, Task)  # just checked
    if algorithm.data_kind != task.data.kind:
        raise InputError(
            f"{type(algorithm).__name__} learns from {algorithm.data_kind},"
            f" but the data {task.data.name!r} are {task.data.kind}"
        )


def check_counts(**numbers: object) -> None:
    """Checks whole numbers: the seed from 0, all others from 1.

    Raises:
        InputError: Naming the argument and the nearest valid number.
    """
    for name, value in numbers.items():
        least = 0 if name == "seed" else 1
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{name} = {value!r}: must be a whole number of at least {least}")
        if value < least:
            raise InputError(f"{name} = {value}: must be at least {least} (nearest valid: {least})")


def check_rest(*, out: object, evaluate: object, engine: object, config: object, observe: object) -> None:
    """Checks the other arguments of a run.

    Raises:
        InputError: Naming the argument and what to give.
    """
    if out is not None:
        expect("out", out, (str, Path), "the path of a run directory, such as 'runs/first'")
    expect("evaluate", evaluate, Evaluate, as_call("fedfi.Evaluate", evaluate, "every=2"))
    if engine is not None and not all(hasattr(engine, name) for name in ("clients", "map", "evaluate", "close")):
        raise InputError(f"engine is {described(engine)}, expected a fedfi.Engine, such as fedfi.LocalEngine(...)")
    if config is not None:
        expect("config", config, Mapping, "a table of settings")
    if observe is not None and not callable(observe):
        raise InputError(f"observe is {described(observe)}, expected a function of a round's numbers, such as `print`")


def check_data(task: Task, evaluate: Evaluate) -> None:
    """Checks that there are clients, examples to train, judge and choose on, and that none is in two places.

    Raises:
        InputError: If not.
    """
    with about("data"):
        task.data.check()
        if len(task.data.test) == 0:
            raise InputError(f"{task.data.name!r} has no test examples: there would be nothing to judge a model on")
    if evaluate.best and task.data.validation is None:
        raise InputError(
            f"evaluate.best = {evaluate.best!r}: the server holds no validation examples (data.validation)"
        )


def notes_on_method(algorithm: Algorithm[Any], clients: Sequence[str]) -> list[str]:
    """What a method has to say of so many clients before the first round."""
    return algorithm.notes_on_clients(clients) if isinstance(algorithm, NotesOnClients) else []


def running_statistics(task: Task) -> list[str]:
    """Where the task's model has batch norms that keep running statistics."""
    if not isinstance(task.data, FederatedData):
        return []  # methods of ratings bring their own models
    with keyed_global_rng(0, "trial"):
        return names_of_running_norms(task.model())


def expected_of(task: Task, norms: Sequence[str]) -> Expected:
    """What losses are held against: under cross-entropy, chance is the logarithm of the number of classes."""
    known = task.loss is cross_entropy
    return Expected(math.log(max(2, task.data.spec.classes)) if known else None, norms)


def notes_on_norms(algorithm: Algorithm[Any], task: Task, norms: Sequence[str]) -> list[str]:
    """What will not work of batch norms where clients train differing networks and the server has no examples."""
    if not norms or not algorithm.mixes_networks():
        return []
    own = task.examples.validation
    if own is not None and len(own) > 1:
        return []
    layers = f"{counted(len(norms), 'batch norm')} ({some(norms)})"
    return [
        f"the model has {layers} with running statistics, and clients train differing parts of it: the mean of their"
        " statistics fits no network, so that accuracies may be those of chance. With data.validation (a few hundred"
        " examples) statistics are measured anew before a model is judged or delivered; or use group norm"
        ' (torch.nn.GroupNorm, norm = "group")'
    ]


def notes_on_split(task: Task) -> list[str]:
    """What is doubtful about how ratings were read and split, as `split.json` has it; nothing of data elsewhere."""
    return list(task.data.warnings) if isinstance(task.data, RatingsData) else []


def notes_on_data(algorithm: Algorithm[Any], task: Task, evaluate: Evaluate) -> list[str]:
    """What a user should know of data that are here: what is odd about them, who cannot train, and who is not judged.

    Raises:
        InputError: If no client has a training example.
    """
    if not isinstance(task.data, FederatedData):
        return []
    clients = task.data.clients
    notes = list(dict.fromkeys(note for data in clients.values() for note in data.train.dataset.notes))
    idle = [name for name, data in clients.items() if len(data.train) == 0]
    if len(idle) == len(clients):
        raise InputError(f"none of the {len(clients)} clients of {task.data.name!r} has training examples")
    if idle:
        notes.append(f"{_some(idle, clients)} no training examples and will fail in every round: leave them out")
    unjudged = [name for name, data in clients.items() if len(data.test) == 0]
    if unjudged and evaluate.local and isinstance(algorithm, EvaluatesClients):
        notes.append(f"{_some(unjudged, clients)} no test examples and will be missing from local/*")
    return notes


def _some(names: Sequence[str], of: Mapping[str, Any]) -> str:
    return f"{len(names)} of {len(of)} clients ({some(names)}) {'has' if len(names) == 1 else 'have'}"
