"""RegMean: Jin, Ren, Preotiuc-Pietro, Cheng, Dataless knowledge fusion, ICLR 2023, arXiv:2212.09849.

| paper | here |
|---|---|
| G_k = X_k^T X_k of a linear layer's inputs, Eq. 1 | statistic `gram`, divided by the number of rows |
| off-diagonal entries times alpha | `off_diagonal`, tuned on the server's examples among the given |
| W = (sum_k G_k)^-1 sum_k G_k W_k, Eq. 2 | `regression_mean` |
| other parameters: the plain mean | the mean by `weights` |

Deviations: G is per row and weighted by a client's share, which with equal row numbers is the paper's sum. The solve is
guarded: e I is added to the sum and e times the mean of the W_k on the right, with e a millionth of the mean diagonal,
so that inputs which are never active keep the mean's weights, where the plain inverse does not exist. Gram matrices
travel by low rank in 8 bits, as in FedFiOT's comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError, unknown
from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.given import check_range, check_statistics
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.server import best_of
from fedfi.oneshot.uploads import Merged, Upload, shares

_GUARD = 1e-6


def regression_mean(
    models: Sequence[Mapping[str, Tensor]],
    grams: Sequence[Mapping[str, Tensor]],
    party: Sequence[float],
    *,
    off_diagonal: float = 0.9,
) -> Tree:
    """The model whose linear layers reproduce all models' outputs best, in least squares; otherwise the mean.

    Args:
        models: K models.
        grams: K tables of Gram matrices `[in, in]` by layer.
        party: K weights.
        off_diagonal: Factor of the off-diagonal entries, in [0, 1].

    Raises:
        InputError: If models, matrices and weights do not fit together.
    """
    merged = mean(models, party)
    check_statistics("grams", grams, models)
    check_range("off_diagonal", off_diagonal, 0.0, 1.0)
    _check_widths(grams[0], models[0])
    for layer in grams[0]:
        name = f"{layer}.weight" if layer else "weight"
        total, right = None, None
        for model, gram, p in zip(models, grams, party, strict=True):
            g = gram[layer].double() * p
            g = off_diagonal * g + (1 - off_diagonal) * torch.diag(g.diagonal())
            product = g @ model[name].double().T
            total = g if total is None else total + g
            right = product if right is None else right + product
        assert total is not None  # there is at least one model
        assert right is not None
        guard = _GUARD * float(total.diagonal().mean())
        if guard == 0:
            continue
        total = total + guard * torch.eye(len(total), dtype=total.dtype)
        right = right + guard * merged[name].double().T
        merged[name] = torch.linalg.solve(total, right).T.to(merged[name].dtype).contiguous()
    return merged


def _check_widths(grams: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    layers = {
        name.removesuffix("weight").rstrip("."): value for name, value in model.items() if name.endswith("weight")
    }
    for layer, gram in grams.items():
        if layer not in layers:
            raise InputError(f"grams: {unknown('layer', layer, layers)}")
        width = layers[layer].flatten(1).shape[1]
        if list(gram.shape) != [width, width]:
            raise InputError(f"grams[0][{layer!r}] has shape {list(gram.shape)}, expected {[width, width]}")


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class RegMean(OneShot):
    """Linear layers by least squares on all clients' inputs, the rest by the mean."""

    off_diagonal: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1)], ...],
        Field(min_length=1, description="factors of off-diagonal entries; the best on the server's examples"),
    ] = (0.9, 0.1)

    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("off_diagonal", "examples"),
    )

    def needs(self) -> tuple[str, ...]:
        """Gram matrices."""
        return ("gram",)

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Every candidate; the best."""
        party, grams = shares(uploads, self.weights), [u.measured("gram") for u in uploads]
        tried = self.off_diagonal if context.server.examples is not None else self.off_diagonal[:1]
        models = [u.model for u in uploads]
        candidates = [regression_mean(models, grams, party, off_diagonal=factor) for factor in tried]
        best, _ = best_of(candidates, context.server)
        return Merged(candidates[best], {"merge/off_diagonal": tried[best]})
