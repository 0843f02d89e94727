"""Which parameters of a model may be selected for a submodel, and which belong to normalisation layers."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

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


def selection_pool(module: nn.Module) -> list[str]:
    """Names, in order of definition, of the parameters that may be selected.

    These are all trainable ones (weights and biases of convolutions, linear layers, embeddings) but those of
    normalisation layers, which every submodel keeps, as in FIARSE.

    Args:
        module: Any module; names are those of its `named_parameters`, a shared parameter counted once.
    """
    norms = norm_parameter_names(module)
    return [name for name, p in module.named_parameters() if p.requires_grad and name not in norms]
