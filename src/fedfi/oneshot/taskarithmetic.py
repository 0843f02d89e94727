"""Task arithmetic: Ilharco et al., Editing models with task arithmetic, ICLR 2023, arXiv:2212.04089.

| paper | here |
|---|---|
| tau_k = theta_k - theta_0 | `taskvectors.task_vector`, with the opposite sign |
| theta_0 + lambda sum_k tau_k | `added`: lambda K is `scale` |
| lambda from validation data | `scale`, the best of the given on the server's examples |

Deviations: task vectors are weighted (`weights`), so that `scale = [1.0]` is FedAvg, to the bit with 32-bit uploads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Tree
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.given import check_models, check_names, check_range
from fedfi.oneshot.means import same_tensors
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.server import best_of
from fedfi.oneshot.taskvectors import common_start, task_vector
from fedfi.oneshot.uploads import Merged, Upload, masses


def added(
    models: Sequence[Mapping[str, Tensor]],
    start: Mapping[str, Tensor],
    names: Sequence[str],
    party: Sequence[float],
    *,
    scale: float = 1.0,
) -> Tree:
    """The start plus `scale` times the mean task vector; what is not trained is averaged.

    Args:
        models: K models.
        start: What they started from.
        names: The trained parameters.
        party: K weights, of any sum.
        scale: The factor.

    Raises:
        InputError: If models, start, names and weights do not fit together.
    """
    check_models(models, party, start=start)
    check_names(names, models[0], start=start)
    check_range("scale", scale)
    same = same_tensors(models[0])
    same |= {first: name for name, first in same.items() if name in names}
    total, known = WeightedMean(), set(names)
    for model, weight in zip(models, party, strict=True):
        total.add(task_vector(model, start, names) | {n: t for n, t in model.items() if n not in known}, weight)
    found = total.mean()
    moved = {n: start[n] - found[n] * scale for n in names}
    return {n: moved.get(n, moved.get(same.get(n, n), found[n])) for n in models[0]}


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class TaskArithmetic(OneShot):
    """The common start plus a multiple of the mean of what training changed."""

    scale: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        Field(min_length=1, description="factors of the mean task vector; the best on the server's examples"),
    ] = (1.0, 0.5, 1.5, 2.0, 3.0)

    takes_base: ClassVar[bool] = True
    acting: ClassVar[Sequence[Acts]] = (*OneShot.acting, Acts("scale", "examples"))

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Every candidate; the best."""
        start = common_start(context, uploads, "task arithmetic")
        tried = self.scale if context.server.examples is not None else self.scale[:1]
        party = masses(uploads, self.weights)
        models = [u.model for u in uploads]
        candidates = [added(models, start, uploads[0].trained, party, scale=scale) for scale in tried]
        best, _ = best_of(candidates, context.server)
        return Merged(candidates[best], {"merge/scale": tried[best]})
