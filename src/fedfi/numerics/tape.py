"""What each layer of a network is fed in one pass, and the gradient of the loss by what it puts out.

Shape convention: B examples a batch; a layer's inputs and slopes are `[B, ...]`. The loss is summed over examples, so
row b of a slope is the gradient of example b's loss alone, in a network whose examples do not mix. That is all that
per-example gradients of a layer's parameters need: no gradient of a parameter is computed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedfi.numerics.gradients import Loss, require_separable

__all__ = ["Record", "record", "record_each", "record_labels", "used_once"]


@dataclass(frozen=True, eq=False)
class Record:
    """One layer in one pass.

    Attributes:
        name: The layer's name in the model.
        layer: The layer.
        inputs: `[B, ...]`.
        slopes: The gradient of the summed loss by the layer's outputs, `[B, ...]`.
    """

    name: str
    layer: nn.Module
    inputs: Tensor
    slopes: Tensor


def listen(model: nn.Module, hooks: Iterable[RemovableHandle], batches: Iterable[Tensor]) -> None:
    """Passes batches through a model without gradients while hooks listen, and removes them, whatever happens.

    Args:
        model: Left as found.
        hooks: Registered as they are taken, so that one that cannot be leaves none behind.
        batches: Inputs `[B, ...]`.
    """
    with ExitStack() as stack, torch.no_grad():
        for hook in hooks:
            stack.enter_context(hook)
        for batch in batches:
            model(batch)


def used_once(model: nn.Module, inputs: Tensor, names: Collection[str]) -> set[str]:
    """Those of the named layers that one pass calls exactly once, with one tensor."""
    calls: dict[str, list[int]] = {}

    def count(name: str, arguments: tuple[object, ...]) -> None:
        calls.setdefault(name, []).append(len(arguments) if isinstance(arguments[0], Tensor) else 0)

    layers = dict(model.named_modules())
    hooks = (
        layers[name].register_forward_pre_hook(lambda _, arguments, name=name: count(name, arguments)) for name in names
    )
    listen(model, hooks, [inputs])
    return {name for name, seen in calls.items() if seen == [1]}


def record(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, names: Collection[str]) -> list[Record]:
    """Passes a batch forward and back and notes what the named layers saw; the model is left as found.

    Args:
        model: Any module in evaluation mode, or without layers that mix examples.
        inputs: `[B, ...]`.
        targets: `[B, ...]`.
        loss: Outputs and targets to the unreduced losses `[B]`.
        names: Layers of the model, each called once a pass (see `used_once`); those that the pass does not reach
            are left out.

    Raises:
        ValueError: For a layer that mixes examples, or a loss that is not one value an example.
    """
    return next(record_each(model, inputs, lambda outputs: [loss(outputs, targets)], names))


def record_labels(model: nn.Module, inputs: Tensor, names: Collection[str]) -> Iterator[list[Record]]:
    """One record for each class y, of log p(y|x) times the root of p(y|x): squared, slopes have weight p(y|x).

    Args:
        model: As for `record`; it returns logits `[B, C]`.
        inputs: `[B, ...]`.
        names: As for `record`.

    Raises:
        ValueError: As `record`, or for outputs that are not `[B, C]`.
    """

    def weighted(logits: Any) -> Iterator[Tensor]:
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise ValueError("the exact Fisher information expects a model that returns logits [B, C]")
        said = logits.log_softmax(1)
        roots = (said.detach() / 2).exp()
        return (said[:, label] * roots[:, label] for label in range(logits.shape[1]))

    return record_each(model, inputs, weighted, names)


def record_each(
    model: nn.Module, inputs: Tensor, losses: Callable[[Any], Iterable[Tensor]], names: Collection[str]
) -> Iterator[list[Record]]:
    """One pass forward, and one back for each of several losses, as `record`.

    Args:
        model: As for `record`.
        inputs: `[B, ...]`.
        losses: Outputs to unreduced losses `[B]`, one or more.
        names: As for `record`.
    """
    require_separable(model)
    layers = dict(model.named_modules())
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not output.requires_grad:  # the first layer of a network without gradients
            output = output.detach().requires_grad_()
        seen[name] = arguments[0].detach(), output
        return output.clone()  # so that an in-place function after it leaves the noted tensor alone

    hooks = [
        layers[name].register_forward_hook(lambda _, arguments, output, name=name: note(name, arguments, output))
        for name in names
    ]
    try:
        with torch.enable_grad():
            given = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [output for _, output in seen.values()]
    with torch.enable_grad():
        pending = iter(losses(given))
        values: Tensor | None = next(pending)
        while values is not None:
            following = next(pending, None)
            if values.shape != (len(inputs),):
                raise ValueError(
                    f"the loss returned shape {list(values.shape)}; expected one value an example, [{len(inputs)}]"
                )
            slopes = torch.autograd.grad(
                values.sum(), outputs, materialize_grads=True, retain_graph=following is not None
            )
            yield [
                Record(name, layers[name], x, slope.detach())
                for (name, (x, _)), slope in zip(seen.items(), slopes, strict=True)
            ]
            values = following
