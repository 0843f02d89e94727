"""Models: networks that map a batch of inputs to logits, made by name for the data at hand."""

from fedfi.models.factory import (
    available,
    build,
    check_module,
    check_options,
    documented,
    options,
    outside,
    trained_size,
)
from fedfi.models.pools import selection_pools
from fedfi.models.shapes import InputSpec

__all__ = [
    "InputSpec",
    "available",
    "build",
    "check_module",
    "check_options",
    "documented",
    "options",
    "outside",
    "selection_pools",
    "trained_size",
]
