"""Batch and per-example gradients of any module, without touching it.

Shape convention: B examples a batch; "rows" are what gradients are taken for one by one, examples or
(example, class) pairs. Functions return sums, so that batches of unequal sizes are averaged correctly.

The module is called through `torch.func.functional_call` with detached parameters and copied buffers: its
`.grad`, buffers and mode stay as they are.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

__all__ = ["Loss", "Named", "batch_gradient", "exact_squares", "example_sums", "selected_parameters", "wide"]

Loss = Callable[[Any, Tensor], Tensor]
"""Outputs and targets of B examples to their unreduced losses `[B]`."""

Named = dict[str, Tensor]
"""One tensor per parameter name."""


def selected_parameters(model: nn.Module, names: Collection[str] | None) -> Named:
    """The detached parameters called `names`, or (None) all that require gradients, in the model's order.

    Raises:
        ValueError: for a name that is not a parameter of the model, or if no parameter is left.
    """
    parameters = dict(model.named_parameters())
    if names is None:
        chosen = {name for name, value in parameters.items() if value.requires_grad}
    else:
        chosen = set(names)
        if unknown := sorted(chosen - parameters.keys()):
            raise ValueError(f"{unknown} are not parameters of the model; expected some of {list(parameters)}")
    if not chosen:
        raise ValueError("no parameters to differentiate; expected a model or names with at least one")
    return {name: value.detach() for name, value in parameters.items() if name in chosen}


def batch_gradient(model: nn.Module, parameters: Named, inputs: Tensor, targets: Tensor, loss: Loss) -> Named:
    """The gradient of the mean loss over a batch; parameters that the loss does not depend on get zeros."""
    _require_rows(inputs, targets)
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        outputs = functional_call(model, _state(model) | leaves, (inputs,))
        losses = _unreduced(loss(outputs, targets), len(inputs))
        gradients = torch.autograd.grad(losses.mean(), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))


def example_sums(
    model: nn.Module, parameters: Named, inputs: Tensor, targets: Tensor, loss: Loss, chunk: int
) -> tuple[Named, Named, Tensor]:
    """Sums over the examples of a batch: gradients, squared gradients, losses (a scalar)."""
    state = _state(model)

    def one(leaves: Named, x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, state | leaves, (x.unsqueeze(0),))
        return _unreduced(loss(outputs, y.unsqueeze(0)), 1).sum()

    return _sums(model, parameters, one, inputs, targets, chunk, torch.ones_like)


def exact_squares(model: nn.Module, parameters: Named, inputs: Tensor, chunk: int) -> Named:
    """Sums over examples x and classes y of p(y|x) times the squared gradient of log p(y|x)."""
    _require_rows(inputs, inputs)
    require_separable(model)
    state = _state(model)

    def logits(leaves: Named, x: Tensor) -> Tensor:
        outputs = functional_call(model, state | leaves, (x.unsqueeze(0),))
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            given = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(f"the output for one example is {given}; kind 'exact' expects logits [1, C]")
        return outputs[0]

    def one(leaves: Named, x: Tensor, label: Tensor) -> Tensor:
        return logits(leaves, x).log_softmax(0).gather(0, label.unsqueeze(0))[0]

    with torch.no_grad():
        classes = logits(parameters, inputs[0]).numel()
    labels = torch.arange(classes, device=inputs.device).repeat(len(inputs))
    pairs = inputs.repeat_interleave(classes, dim=0)
    return _sums(model, parameters, one, pairs, labels, chunk, torch.exp)[1]


def wide(value: Tensor) -> torch.dtype:
    """The type to add squares up in: that of `value`, but at least float32 (half precision underflows)."""
    return torch.promote_types(value.dtype, torch.float32)


def _sums(
    model: nn.Module,
    parameters: Named,
    one: Callable[[Named, Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    chunk: int,
    weigh: Callable[[Tensor], Tensor],
) -> tuple[Named, Named, Tensor]:
    """Sums over all rows, `chunk` at a time: gradients of `one`, weigh(one) gradient^2, and `one`."""
    _require_rows(inputs, targets)
    require_separable(model)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected at least 1")
    # With layers in training mode each row draws its own dropout mask, as it would in a batch.
    randomness = "different" if any(module.training for module in model.modules()) else "error"
    each = vmap(grad_and_value(one), in_dims=(None, 0, 0), randomness=randomness)
    gradients = {name: torch.zeros_like(value, dtype=wide(value)) for name, value in parameters.items()}
    squares = {name: value.clone() for name, value in gradients.items()}
    total = torch.zeros((), device=inputs.device)
    # grad_and_value differentiates all the same; no_grad keeps the caller's graph out of the results.
    # The fused attention kernels have no rule for vmap, which would warn and loop; the plain formula has.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for x, y in zip(torch.split(inputs, chunk), torch.split(targets, chunk), strict=True):
            rows, values = each(parameters, x, y)
            weights, total = weigh(values), total + values.sum()
            for name, row in rows.items():
                flat = row.reshape(len(x), parameters[name].numel()).to(gradients[name].dtype)
                gradients[name] += flat.sum(0).view_as(gradients[name])
                squares[name] += (weights.to(flat.dtype) @ flat.square()).view_as(squares[name])
    return gradients, squares, total


def _state(model: nn.Module) -> Named:
    """All parameters, detached, and copies of the buffers, since some layers write into theirs."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return parameters | {name: value.detach().clone() for name, value in model.named_buffers()}


def _unreduced(losses: Tensor, batch: int) -> Tensor:
    if losses.shape != (batch,):
        raise ValueError(f"the loss returned shape {list(losses.shape)}; expected one value an example, [{batch}]")
    return losses


def _require_rows(inputs: Tensor, targets: Tensor) -> None:
    if not len(inputs) or len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets; expected as many of both, at least 1")


def require_separable(model: nn.Module) -> None:
    """Refuses layers whose output for one example depends on the others, or that track statistics."""
    if layer := mixing_layer(model):
        raise ValueError(
            f"layer {layer} uses or updates batch statistics, so an example "
            "has no gradient of its own; call model.eval() if it tracks running statistics, replace it "
            "by GroupNorm, or use kind='batch'"
        )


def mixing_layer(model: nn.Module) -> str | None:
    """The first layer that `require_separable` refuses, by name and class, such as ``'1' (BatchNorm1d)``."""
    for name, layer in model.named_modules():
        batched = isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        tracked = isinstance(layer, _InstanceNorm) and layer.training and layer.running_mean is not None
        if batched or tracked:
            return f"{name!r} ({type(layer).__name__})"
    return None
