"""Which parameters of a module may be selected for a submodel."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_parameter_names(module: nn.Module) -> set[str]:
    """Names of the parameters that normalisation layers own."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, child in module.named_modules()
        if isinstance(child, _NORMS)
        for name, _ in child.named_parameters(recurse=False)
    }


def selection_pool(module: nn.Module) -> list[str]:
    """Names, in definition order, of all trainable parameters but those of normalisation layers."""
    norms = norm_parameter_names(module)
    return [n for n, p in module.named_parameters() if p.requires_grad and n not in norms]
