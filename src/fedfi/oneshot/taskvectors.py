"""Task vectors: what training changed of a model that all parties started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.packet import Tree
from fedfi.oneshot.method import Context
from fedfi.oneshot.uploads import Upload


def common_start(context: Context, uploads: Sequence[Upload], method: str) -> Tree:
    """The model that the parties started from.

    Raises:
        InputError: If there is none, or it is another network's.
    """
    if context.before is None:
        raise InputError(
            f"{method} adds what training changed, so it needs the model that all parties started from"
            f" ({context.cures.start})"
        )
    for name in uploads[0].trained:
        if name not in context.before or context.before[name].shape != uploads[0].model[name].shape:
            raise InputError(f"{method}: the common start does not hold {name!r} as {uploads[0].party!r} does")
    return context.before


def task_vector(model: Mapping[str, Tensor], start: Mapping[str, Tensor], names: Sequence[str]) -> Tree:
    """Start minus model, the direction of an optimiser's update, for the trained parameters."""
    return {name: start[name] - model[name] for name in names}
