"""What a party can measure of its model on its own examples, besides the model itself.

| kind | by name | used by |
|---|---|---|
| `fisher` | parameter: mean squared per-example gradient | FedFiOT, FisherMerge, FedFisher, FedBEns |
| `exact` | parameter: the same with labels drawn from the model, in expectation | the same methods |
| `kfac` | `LAYER/inputs`, `LAYER/outputs`: Kronecker factors (`numerics.kfac`) | FedFisher, FedBEns |
| `exact-kfac` | the same with labels drawn from the model, in expectation | FedFisher, FedBEns |
| `last` | the last matrix `LAYER`: its full Fisher information | FedBEns (Diag + Full) |
| `exact-last` | the same with labels drawn from the model, in expectation | FedBEns (Diag + Full) |
| `gram` | linear `LAYER`: X^T X / n of its inputs | RegMean |
| `classes` | `counts`: examples of each class, int64 `[classes]` | DENSE, PFNM, FedMA |

The model runs in evaluation mode, on examples without augmentation, with their observed labels unless it says
otherwise. Labels drawn from the model cost a backward pass a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from fedfi.arguments import expect
from fedfi.channels.tracing import innermost
from fedfi.data.dataset import Examples
from fedfi.errors import InputError, first_line, out_of_memory, some, unknown
from fedfi.federation.packet import Tree
from fedfi.federation.task import Loss
from fedfi.federation.workbench import Workbench
from fedfi.models import InputSpec
from fedfi.models.shapes import as_fed
from fedfi.numerics.diagonal import empirical_fisher, exact_fisher
from fedfi.numerics.finite import all_finite
from fedfi.numerics.kfac import full_fisher, gram_matrices, kronecker_factors, matrix_layers
from fedfi.numerics.tape import used_once

_BATCH = 64
Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Kind:
    """A statistic: how it is computed, and whether it is a number a parameter, matrices, or counts."""

    form: str
    compute: Callable[[nn.Module, Batches, Loss, int], Tree]


def _fisher(module: nn.Module, batches: Batches, loss: Loss, classes: int) -> Tree:
    return empirical_fisher(module, batches, loss)


def _exact(module: nn.Module, batches: Batches, loss: Loss, classes: int) -> Tree:
    return exact_fisher(module, batches)


def _kfac(module: nn.Module, batches: Batches, loss: Loss | None, classes: int) -> Tree:
    found = kronecker_factors(module, batches, loss)
    return {f"{n}/{side}": getattr(f, side) for n, f in sorted(found.items()) for side in ("inputs", "outputs")}


def _exact_kfac(module: nn.Module, batches: Batches, loss: Loss, classes: int) -> Tree:
    return _kfac(module, batches, None, classes)


def _last(module: nn.Module, batches: Batches, loss: Loss | None, classes: int) -> Tree:
    first = next(batches, None)
    if first is None:
        return {}
    layer = last_layer(module, first[0])
    return {layer: full_fisher(module, chain([first], batches), loss, layer)}


def _exact_last(module: nn.Module, batches: Batches, loss: Loss, classes: int) -> Tree:
    return _last(module, batches, None, classes)


def last_layer(module: nn.Module, example: Tensor) -> str:
    """The last layer in the module's order that has a matrix and is called once a pass.

    Raises:
        ValueError: If there is none.
    """
    once = used_once(module, example, matrix_layers(module))
    found = [name for name in matrix_layers(module) if name in once]
    if not found:
        raise ValueError(f"{type(module).__name__} has no linear layer or convolution that is called once a pass")
    return found[-1]


def _gram(module: nn.Module, batches: Batches, loss: Loss, classes: int) -> Tree:
    return dict(sorted(gram_matrices(module, (x for x, _ in batches)).items()))


def _classes(module: nn.Module, batches: Batches, loss: Loss, classes: int) -> Tree:
    return {"counts": sum(torch.bincount(y.cpu(), minlength=classes) for _, y in batches)}  # type: ignore[dict-item]


KINDS: dict[str, Kind] = {
    "fisher": Kind("diagonal", _fisher),
    "exact": Kind("diagonal", _exact),
    "kfac": Kind("matrices", _kfac),
    "exact-kfac": Kind("matrices", _exact_kfac),
    "last": Kind("matrices", _last),
    "exact-last": Kind("matrices", _exact_last),
    "gram": Kind("matrices", _gram),
    "classes": Kind("counts", _classes),
}


def measure(
    kinds: tuple[str, ...],
    module: nn.Module,
    examples: Examples,
    loss: Loss,
    *,
    limit: int | None = None,
    rng: torch.Generator | None = None,
    device: torch.device | None = None,
) -> dict[str, Tree]:
    """Measures some statistics of a model.

    Args:
        kinds: Names of `KINDS`.
        module: The model; it is put into evaluation mode.
        examples: On what; each is used once, in order, without augmentation.
        loss: Outputs and targets to the losses `[B]`.
        limit: Use so many examples at most, drawn with `rng`; counts of classes are of all.
        rng: Draws the examples; needed where there are more than `limit`.
        device: Where the model is.

    Raises:
        InputError: If there are no examples, or the model does not allow it (it mixes examples).
    """
    if not len(examples):
        raise InputError("statistics need at least one example, got none")
    module.eval()
    chosen = torch.arange(len(examples))
    if limit is not None and limit < len(examples):
        chosen = torch.randperm(len(examples), generator=rng)[:limit].sort().values
    found = {}
    for kind in kinds:
        rows = torch.arange(len(examples)) if kind == "classes" else chosen
        pairs = (examples.batch(part) for part in rows.split(_BATCH))
        batches = ((x.to(device), y.to(device)) for x, y in pairs)
        try:
            found[kind] = KINDS[kind].compute(module, batches, loss, examples.dataset.spec.classes)
        except ValueError as error:
            raise InputError(f"statistic {kind!r}: {error}") from error
        except RuntimeError as error:  # torch's, of a layer that has no gradients an example
            if out_of_memory(error):
                raise
            raise InputError(_unmeasurable(kind, module, error)) from error
    return found


def _unmeasurable(kind: str, module: nn.Module, error: RuntimeError) -> str:
    inner = innermost(module, error)
    layer = f"layer {inner!r}, a {type(module.get_submodule(inner)).__name__}," if inner else type(module).__name__
    return (
        f"statistic {kind!r}: {layer} cannot be measured one example at a time ({first_line(error)}); linear layers,"
        " convolutions, embeddings, norms and what torch.func.vmap takes can; recurrent layers of torch cannot;"
        " average needs no statistic"
    )


def matrix_sizes(kind: str, module: nn.Module, example: Tensor) -> dict[str, tuple[int, int]]:
    """The side of each matrix of a kind, and the number of parameters of its layer."""
    layers = dict(module.named_modules())
    found: dict[str, tuple[int, int]] = {}
    if kind in ("last", "exact-last"):
        name = last_layer(module, example)
        count = sum(p.numel() for p in layers[name].parameters(recurse=False))
        return {name: (count, count)}
    for name in sorted(used_once(module, example, matrix_layers(module))):
        layer = layers[name]
        count = sum(p.numel() for p in layer.parameters(recurse=False))
        weight = layer.weight
        assert isinstance(weight, Tensor)  # of a linear layer or a convolution
        inputs = weight[0].numel()
        if kind in ("kfac", "exact-kfac"):
            found[f"{name}/inputs"] = inputs + (layer.bias is not None), count
            found[f"{name}/outputs"] = len(weight), count
        elif isinstance(layer, nn.Linear):
            found[name] = inputs, count
    return found


def check_statistic(kind: str, found: Mapping[str, Tensor], bench: Workbench, spec: InputSpec, source: str) -> None:
    """Checks that a statistic is one of this network: names, shapes, finite numbers, and no square below zero.

    Args:
        kind: One of `KINDS`.
        found: The statistic.
        bench: The network.
        spec: What it is fed.
        source: Where the statistic is from; errors start with it.

    Raises:
        InputError: Naming the kind, or the first entry that does not fit.
    """
    if kind not in KINDS:
        raise InputError(f"{source}: {unknown('statistic', kind, KINDS)}")
    source, form = f"{source}[{kind!r}]", KINDS[kind].form
    expect(source, found, Mapping, "tensors by name, as fedfi.measure gives them")
    for name, value in found.items():
        expect(f"{source}[{name!r}]", value, Tensor, "a tensor")
    if form == "diagonal":
        shapes = {name: tuple(value.shape) for name, value in bench.parameters().items()}
    elif form == "matrices":
        sizes = matrix_sizes(kind, bench.module, as_fed(spec.example(1), bench.module))
        shapes = {name: (side, side) for name, (side, _) in sizes.items()}
    else:
        shapes = {"counts": (spec.classes,)}
    for what, names in (("lacks", shapes.keys() - found.keys()), ("holds", found.keys() - shapes.keys())):
        if names:
            raise InputError(f"{source} {what} {min(names)!r}: expected {some(sorted(shapes))}")
    for name, value in found.items():
        if tuple(value.shape) != shapes[name]:
            raise InputError(f"{source}[{name!r}] has shape {list(value.shape)}, expected {list(shapes[name])}")
        if value.is_floating_point() and not all_finite(value):
            raise InputError(f"{source}[{name!r}] holds values that are not finite")
        squares = value.diagonal() if form == "matrices" else value
        if squares.numel() and float(squares.min()) < 0:
            where = "on its diagonal, " if form == "matrices" else ""
            raise InputError(f"{source}[{name!r}] holds {float(squares.min()):g}, {where}expected at least 0")
