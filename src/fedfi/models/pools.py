"""Which parameters of a model may be selected for a submodel, and which belong to normalisation layers."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedfi.errors import InputError, unknown

# _NormBase is the base of all batch and instance norms.
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_parameter_names(module: nn.Module) -> set[str]:
    """Names of the parameters owned by batch, instance, group, layer and RMS norms and their subclasses.

    Args:
        module: Any module; names are those of its `named_parameters`.
    """
    return {
        name
        for path, part in module.named_modules()
        if isinstance(part, _NORMS)
        for name, _ in part.named_parameters(prefix=path, recurse=False)
    }


def selection_pools(module: nn.Module) -> list[list[str]]:
    """Names of the parameters that may be selected, in pools that are ranked apart from each other.

    By default one pool of all trainable parameters (weights and biases of convolutions, linear layers, embeddings),
    in order of definition, but those of normalisation layers, which every submodel keeps, as in FIARSE. A module may
    say otherwise by a method ``selection_pools()`` that returns such lists; what it leaves out is always kept.

    Args:
        module: Any module; names are those of its `named_parameters`, a shared parameter counted once.

    Raises:
        InputError: If the module's own pools name something twice, or something that is no trainable parameter.
    """
    trainable = [name for name, p in module.named_parameters() if p.requires_grad]
    own = getattr(module, "selection_pools", None)
    if own is None:
        norms = norm_parameter_names(module)
        return [[name for name in trainable if name not in norms]]
    pools = [list(pool) for pool in own()]
    seen: set[str] = set()
    for name in (name for pool in pools for name in pool):
        if name not in trainable:
            raise InputError(f"{type(module).__name__}.selection_pools: " + unknown("parameter", name, trainable))
        if name in seen:
            raise InputError(f"{type(module).__name__}.selection_pools names {name!r} twice")
        seen.add(name)
    return [pool for pool in pools if pool]
