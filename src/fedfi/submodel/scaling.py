"""HeteroFL's scaler: cut layers divide their outputs in training, and hold the division when they are judged.

The division is written twice: by hooks on the layers (`scaled`), whose optimizer steps are then those of the authors,
and into their parameters (`fold`), so that a submodel that is judged or exported is a plain network. Both are one and
the same for layers that multiply by their weight, add their bias, and do nothing else. `check_scaler` makes sure.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedfi.channels import Wiring
from fedfi.channels.tracing import arguments, evaluating
from fedfi.channels.verifying import close, outputs
from fedfi.errors import InputError
from fedfi.federation.rng import keyed_global_rng

ATTENTION = "torch.nn.MultiheadAttention"
_DIVISOR = 0.5  # a power of two, by which floating-point numbers are divided without rounding
_TOLERANCE = 1e-6  # relative to the largest number of an output


def check_reach(wiring: Wiring, module: nn.Module) -> None:
    """Checks that hooks reach what every cut parameter makes.

    Raises:
        InputError: Naming a parameter that they do not reach.
    """
    if why := beyond_hooks(module, wiring):
        raise InputError(f"scaler = true divides the outputs of layers, but {why}; set scaler = false")


def check_scaler(wiring: Wiring, module: nn.Module, width: float) -> None:
    """Checks that the scaler's two ways make the same outputs of the network of a width.

    Args:
        wiring: The module's channel groups.
        module: The whole network; left as it is.
        width: The smallest; a federation of whole networks has nothing to scale.

    Raises:
        InputError: Naming the layer that the scaler cannot divide.
    """
    if width == 1:
        return
    small = wiring.shrink(module, wiring.prefix(width))
    _tell(small)
    paths = cut_layers(wiring)
    if _same(small, wiring, paths):
        return
    path = next((path for path in paths if not _same(small, wiring, [path])), paths[0])
    raise InputError(
        f"scaler = true divides the outputs of layers, but {path!r} {_fault(small, wiring, path)}, so that a submodel"
        " would be judged as another network than was trained; set scaler = false"
    )


def _same(module: nn.Module, wiring: Wiring, paths: Iterable[str]) -> bool:
    """Whether dividing the outputs of these layers is dividing their parameters."""
    with ExitStack() as hooks:
        for path in paths:
            hook = module.get_submodule(path).register_forward_hook(_divided)
            hooks.callback(hook.remove)
        trained = _run(module, wiring)
    folded = copy.deepcopy(module)
    _divide(folded, paths, _DIVISOR)
    judged = _run(folded, wiring)
    return len(judged) == len(trained) and all(
        close(new.double(), old.double(), _TOLERANCE) for new, old in zip(judged, trained, strict=True)
    )


def _divided(_: nn.Module, __: object, out: object) -> object:
    """A hook that divides what is a tensor; what is none shows as a difference."""
    return out / _DIVISOR if isinstance(out, Tensor) else out


def _run(module: nn.Module, wiring: Wiring) -> list[Tensor]:
    """What the module makes of the example in evaluation mode, whatever it may draw."""
    args, kwargs = arguments(pytree.tree_map_only(Tensor, torch.clone, wiring.example))
    with evaluating(module), torch.no_grad(), keyed_global_rng(0, "scaler"):
        return outputs(module(*args, **kwargs))


def _fault(module: nn.Module, wiring: Wiring, path: str) -> str:
    calls: list[str] = []
    hook = module.get_submodule(path).register_forward_hook(lambda part, _, out: calls.append(path))
    _run(module, wiring)
    hook.remove()
    if not calls:
        return "is never called: its parameters are used by something else"
    return "does more than to multiply by its weight and add its bias, or something else uses these, too"


def _tell(module: nn.Module) -> None:
    """Moves parameters that are the same number everywhere, such as zeros, behind which no difference shows."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.rand(parameter.shape, generator=rng)
            if (
                parameter.is_floating_point()
                and parameter.numel()
                and bool((parameter == parameter.flatten()[0]).all())
            ):
                parameter.add_(0.5 * noise.to(parameter))


class scaled(ExitStack):
    """Within it, a network in training divides the outputs of its cut layers by the width."""

    def __init__(self, module: nn.Module, wiring: Wiring, width: float) -> None:
        super().__init__()
        if width == 1:
            return
        parts = dict(module.named_modules())
        for path in cut_layers(wiring):
            hook = parts[path].register_forward_hook(lambda part, _, out: out / width if part.training else out)
            self.callback(hook.remove)


def fold(module: nn.Module, wiring: Wiring, width: float) -> None:
    """Divides the parameters of cut layers by the width, so that they compute what they did under `scaled`."""
    if width != 1:
        _divide(module, cut_layers(wiring), width)


def _divide(module: nn.Module, paths: Iterable[str], divisor: float) -> None:
    parts = dict(module.named_modules())
    with torch.no_grad():
        for path in paths:
            for parameter in parts[path].parameters(recurse=False):
                parameter.div_(divisor)


def beyond_hooks(module: nn.Module, wiring: Wiring) -> str | None:
    """Why the scaler cannot reach what a cut parameter makes, if there is such a parameter.

    A hook sees the output of a layer, and `fold` divides the parameters of that layer alone: a parameter that makes
    channels inside another operation is not seen, and one that two layers share would be divided for both.
    """
    parts = dict(module.named_modules(remove_duplicate=False))
    inside = [path for path, part in parts.items() if isinstance(part, nn.MultiheadAttention)]
    for name in dict.fromkeys(m.name for group in wiring.groups for m in group.members if m.role == "out"):
        path, _, leaf = name.rpartition(".")
        if any(name.startswith(f"{each}.") for each in inside):
            return f"{name!r} is inside a {ATTENTION}, which does not show them"
        if leaf not in ("weight", "bias"):
            return f"{name!r} is not the weight or bias of a layer"
        for other, first in wiring.aliases.items():
            if first == name and parts[other.rpartition(".")[0]] is not parts[path]:
                return f"{name!r} is also {other!r}, the parameter of another layer"
    return None


def cut_layers(wiring: Wiring) -> list[str]:
    """Paths of the modules that make channels of a group: convolutions, linear layers, embeddings."""
    made = [m.name for group in wiring.groups for m in group.members if m.role == "out"]
    return list(dict.fromkeys(name.rpartition(".")[0] for name in made if name.endswith(".weight")))
