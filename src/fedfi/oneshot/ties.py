"""TIES: Yadav, Tam, Choshen, Raffel, Bansal, TIES-Merging, NeurIPS 2023, arXiv:2306.01708.

| paper, Algorithm 1 | here |
|---|---|
| trim: the top k % of each task vector by magnitude | `keep` |
| elect: sign of the sum of trimmed vectors | `elected` |
| disjoint mean over the vectors that agree with the sign | `elected` |
| theta_0 + lambda tau_m | `scale`, the best of the given on the server's examples |

Deviations: a client weighs its share of the examples in the sign's sum and in the mean; `weights = "uniform"` is the
paper's. Of a zero sum nothing is taken. What is not trained is averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.numerics.selection import count_for, top_k_mask
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.given import check_models, check_names, check_party, check_range
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.server import best_of
from fedfi.oneshot.taskvectors import common_start
from fedfi.oneshot.uploads import Merged, Upload, shares


def elected(vectors: Sequence[Tensor], party: Sequence[float], *, keep: float = 0.2) -> Tensor:
    """Trims vectors `[d]`, elects the sign of each coordinate, and averages those that agree.

    Args:
        vectors: K task vectors `[d]`.
        party: K positive weights.
        keep: Share of the coordinates of each vector that is kept, by magnitude, in (0, 1].

    Raises:
        InputError: If `keep` or a weight is none.
    """
    check_party(party, len(vectors))
    check_range("keep", keep, 0.0, 1.0, open_below=True)
    trimmed = [torch.where(top_k_mask(v.abs(), count_for(keep, len(v))), v, 0.0) for v in vectors]
    sign = torch.stack([v * p for v, p in zip(trimmed, party, strict=True)]).sum(0).sign()
    total, mass = torch.zeros_like(vectors[0]), torch.zeros_like(vectors[0])
    for vector, p in zip(trimmed, party, strict=True):
        agrees = (vector.sign() == sign) & (sign != 0)
        total += torch.where(agrees, vector * p, 0.0)
        mass += agrees * p
    return torch.where(mass > 0, total / mass.clamp(min=torch.finfo(mass.dtype).tiny), 0.0)


def ties_mean(
    models: Sequence[Mapping[str, Tensor]],
    start: Mapping[str, Tensor],
    names: Sequence[str],
    party: Sequence[float],
    *,
    keep: float = 0.2,
) -> tuple[Tree, Tree]:
    """The merged task vector by name, and the mean of what is not trained.

    Args:
        models: K models.
        start: What they started from.
        names: The trained parameters; magnitudes are ranked over all of them together.
        party: K positive weights.
        keep: As in `elected`.

    Raises:
        InputError: If models, start, names and weights do not fit together.
    """
    check_models(models, party, start=start)
    check_names(names, models[0], start=start)
    vectors = [torch.cat([(m[n] - start[n]).flatten() for n in names]) for m in models]
    parts = elected(vectors, party, keep=keep).split([start[n].numel() for n in names])
    merged = {n: part.view_as(start[n]) for n, part in zip(names, parts, strict=True)}
    known = set(names)
    return merged, mean([{n: t for n, t in m.items() if n not in known} for m in models], party)


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class TIES(OneShot):
    """The largest changes of each client, where they agree in sign."""

    keep: Annotated[float, Field(gt=0, le=1, description="share of each task vector that is kept")] = 0.2
    scale: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        Field(min_length=1, description="factors of the merged task vector; the best on the server's examples"),
    ] = (1.0, 0.5, 1.5, 2.0)

    takes_base: ClassVar[bool] = True
    acting: ClassVar[Sequence[Acts]] = (*OneShot.acting, Acts("scale", "examples"))

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Trim, elect, mean."""
        start = common_start(context, uploads, "TIES")
        party = shares(uploads, self.weights)
        vector, rest = ties_mean([u.model for u in uploads], start, uploads[0].trained, party, keep=self.keep)
        tried = self.scale if context.server.examples is not None else self.scale[:1]
        candidates = [
            {n: start[n] + vector[n] * scale if n in vector else rest[n] for n in uploads[0].model} for scale in tried
        ]
        best, _ = best_of(candidates, context.server)
        return Merged(candidates[best], {"merge/scale": tried[best]})
