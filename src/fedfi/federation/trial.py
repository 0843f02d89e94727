"""Trying a task on a few examples before the first round, so that what does not fit is bad input, not a failed run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfi.arguments import described
from fedfi.data.federated import FederatedData
from fedfi.errors import InputError
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task, cross_entropy
from fedfi.importing import call
from fedfi.models.factory import check_module


def try_out(task: Task) -> list[str]:
    """Runs the model on two training examples, and its outputs through the loss and the evaluation.

    Returns:
        What a user should know of outputs that fit, yet are likely not meant.

    Raises:
        InputError: If one of them fails, or does not give one value an example; under the default loss, too, if the
            model tells fewer classes apart than there are.
    """
    with keyed_global_rng(0, "trial"), torch.no_grad():
        check_fresh(task)
        found = _outputs(task, "the model")
        if found is None:
            return []
        inputs, outputs, targets = found
        notes = _logits("the model", inputs, outputs, task.data.spec.classes) if task.loss is cross_entropy else []
        check_losses(call(task.loss, "the loss", outputs, targets), len(targets))
        judged = call(task.evaluation, "the evaluation", outputs, targets)
        if not isinstance(judged, Mapping):
            raise InputError(
                f"the evaluation returned {described(judged)}, expected a dictionary of one value an example,"
                ' such as {"accuracy": (outputs.argmax(1) == targets).float()}'
            )
        for name, values in judged.items():
            check_values(name, values, len(targets))
        return notes


def check_fresh(task: Task) -> None:
    """Checks that the task makes a new model at each call, so that no run begins from the weights of another.

    Raises:
        InputError: If two calls return the same module, or modules that share a trainable parameter.
    """
    first, second = call(task.model, "the model"), call(task.model, "the model")
    if not isinstance(first, torch.nn.Module) or not isinstance(second, torch.nn.Module):
        made = second if isinstance(first, torch.nn.Module) else first
        raise InputError(f"task.model made a {type(made).__name__}, expected a torch.nn.Module")
    name = type(first).__name__
    advice = f"make it within the function, such as `lambda: {name}(...)`, or give `lambda: copy.deepcopy(net)`"
    if first is second:
        raise InputError(f"task.model returned the same {name} twice, so that runs would change each other; {advice}")
    theirs = {id(p): n for n, p in second.named_parameters()}
    for parameter, tensor in first.named_parameters():
        if tensor.requires_grad and id(tensor) in theirs:
            raise InputError(
                f"task.model made two {name} that share the parameter {parameter!r}, so that runs would change each"
                f" other; {advice}"
            )


def check_logits(task: Task, model: str) -> None:
    """Runs the model on two training examples, to see that it takes them and tells so many classes apart.

    Args:
        task: Which model, on whose examples.
        model: What errors call it.

    Raises:
        InputError: If it fails, or makes no logits ``[examples, classes]``.
    """
    with torch.no_grad():
        found = _outputs(task, model)
    if found is None:
        return
    inputs, outputs, _ = found
    _logits(model, inputs, outputs, task.data.spec.classes)


def _logits(model: str, inputs: Tensor, outputs: Any, classes: int) -> list[str]:
    """Checks that outputs are logits ``[examples, classes]``, or more; what is odd about them, if they are.

    Raises:
        InputError: If they are none.
    """
    got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(got, list) or len(got) != 2 or got[0] != len(inputs) or got[1] < classes:
        raise InputError(
            f"{model} makes {got} of inputs {list(inputs.shape)}, expected logits {[len(inputs), classes]}"
        )
    notes = []
    if got[1] > classes:
        notes.append(f"{model} tells {got[1]} classes apart, the data have {classes}: the others are never right")
    if got[1] > 1 and bool((outputs >= 0).all()) and torch.allclose(outputs.sum(1), torch.ones(()).to(outputs)):
        notes.append(
            f"{model} makes probabilities, rows that sum to one: cross-entropy takes a softmax itself, so leave out"
            " the model's own, under which training is slow"
        )
    return notes


def _outputs(task: Task, model: str) -> tuple[Tensor, Any, Tensor] | None:
    """Inputs, outputs and targets of two training examples; None where nobody has any."""
    if not isinstance(task.data, FederatedData):
        return None  # methods of ratings bring their own models
    train = next((c.train for c in task.data.clients.values() if len(c.train)), None)
    if train is None:
        return None
    inputs, targets = train.batch(torch.arange(min(2, len(train))))
    inputs, targets = inputs.to(task.device), targets.to(task.device)
    module = call(task.model, model)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"task.model made a {type(module).__name__}, expected a torch.nn.Module")
    check_module(module)
    outputs = call(module.to(task.device).eval(), f"{model} on inputs {list(inputs.shape)}", inputs)
    return inputs, outputs, targets


def check_losses(losses: Any, count: int) -> None:
    """Checks that a loss gave one value an example.

    Raises:
        InputError: Saying how to mend it.
    """
    shape = _shape(losses)
    if shape != [count]:
        hint = '; give it reduction="none"' if shape == [] else ""
        raise InputError(f"the loss has shape {_worded(losses)}, expected one value an example, ({count},){hint}")


def check_values(name: str, values: Any, count: int) -> None:
    """Checks that one name of an evaluation holds one value an example.

    Raises:
        InputError: If it does not.
    """
    if _shape(values) != [count]:
        raise InputError(
            f"the evaluation's {name!r} has shape {_worded(values)}, expected one value an example, ({count},)"
        )


def _shape(values: Any) -> list[int] | None:
    return list(values.shape) if isinstance(values, Tensor) else None


def _worded(values: Any) -> str:
    return str(tuple(values.shape)) if isinstance(values, Tensor) else f"none, it is a {type(values).__name__}"
