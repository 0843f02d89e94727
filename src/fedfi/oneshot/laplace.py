r"""Products of mixtures of Gaussians around several models (Laplace approximations), as functions of the weights.

A component is N(w_km, L^-1) with precision L = n F / T + d I: n examples, curvature F a mean over them, temperature T,
prior precision d. Curvatures are `numerics.kfac.Factors` of a layer, a diagonal of a parameter, or a full matrix of a
layer. The log of the product of K mixtures, over the K - 1 priors too many, is

    sum_k logsumexp_m log N(w; w_km, L_km^-1) + (K - 1) d / 2 |w|^2   (up to a constant).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.packet import Tree
from fedfi.numerics.kfac import Factors
from fedfi.oneshot.matrices import factors_by_layer, matrix_of, split
from fedfi.oneshot.uploads import Upload

Curvature = Literal["kron", "diag", "diag-full"]
NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "exact": {"kron": ("exact-kfac",), "diag": ("exact",), "diag-full": ("exact", "exact-last")},
    "observed": {"kron": ("kfac",), "diag": ("fisher",), "diag-full": ("fisher", "last")},
}


@dataclass(frozen=True, eq=False)
class Component:
    """One Gaussian.

    Attributes:
        mean: The model.
        layers: Curvature of layers, times n / T: factors, or a full matrix of the layer's flattened matrix.
        diagonals: Curvature of other parameters, times n / T.
        prior: d.
        normalizer: Half the log determinant of the precision.
    """

    mean: Tree
    layers: Mapping[str, Factors | Tensor]
    diagonals: Tree
    prior: float
    normalizer: float

    @staticmethod
    def of(upload: Upload, curvature: Curvature, needs: Sequence[str], temperature: float, prior: float) -> Component:
        """The component of a model and its statistics, of the names in `NEEDS`."""
        scale = upload.examples / temperature
        if curvature == "kron":
            factors = factors_by_layer(upload.measured(needs[0]))
            layers: dict[str, Factors | Tensor] = {n: Factors(f.inputs * scale, f.outputs) for n, f in factors.items()}
            diagonals: Tree = {}
        else:
            full = upload.measured(needs[1]) if curvature == "diag-full" else {}
            layers = {n: t * scale for n, t in full.items()}
            held = {p for layer in full for p in split(matrix_of(upload.model, layer), upload.model, layer)}
            diagonals = {n: t * scale for n, t in upload.measured(needs[0]).items() if n not in held}
        total = sum(float((t + prior).log().sum()) for t in diagonals.values())
        total += sum(_log_determinant(layer, prior) for layer in layers.values())
        return Component(upload.model, layers, diagonals, prior, total / 2)

    def precision_times(self, w: Mapping[str, Tensor]) -> tuple[Tree, Tree]:
        """The differences from the mean and the precision times them, of every parameter with curvature."""
        apart: Tree = {n: w[n] - self.mean[n] for n in self.diagonals}
        pulled = {n: (self.diagonals[n] + self.prior) * d for n, d in apart.items()}
        for layer, curvature in self.layers.items():
            difference = matrix_of(w, layer) - matrix_of(self.mean, layer)
            if isinstance(curvature, Factors):
                product = curvature.times(difference)
            else:
                product = (curvature @ difference.flatten()).view_as(difference)
            apart |= split(difference, w, layer)
            pulled |= split(product + self.prior * difference, w, layer)
        return apart, pulled


def log_posterior_slope(mixtures: Sequence[Sequence[Component]], w: Mapping[str, Tensor]) -> tuple[float, Tree]:
    """The log of the product at `w`, and its gradient, in closed form.

    Args:
        mixtures: K mixtures of equally weighted components.
        w: A model.
    """
    value, slope = 0.0, dict[str, Tensor]()
    for mixture in mixtures:
        logs, pulls = [], []
        for component in mixture:
            apart, pulled = component.precision_times(w)
            square = sum(float((apart[n].double() * pulled[n].double()).sum()) for n in apart)
            logs.append(component.normalizer - square / 2)
            pulls.append(pulled)
        densities = torch.tensor(logs, dtype=torch.float64)
        value += float(densities.logsumexp(0))
        for share, pulled in zip(densities.softmax(0).tolist(), pulls, strict=True):
            for name, pull in pulled.items():
                slope[name] = slope.get(name, torch.zeros_like(pull)) - share * pull
    more = (len(mixtures) - 1) * mixtures[0][0].prior
    value += more / 2 * sum(float(w[n].double().square().sum()) for n in slope)
    return value, {n: t + more * w[n] for n, t in slope.items()}


def _log_determinant(curvature: Factors | Tensor, prior: float) -> float:
    if isinstance(curvature, Tensor):
        values = torch.linalg.eigvalsh(curvature.double()).clamp(min=0)
    else:
        a, g = (torch.linalg.eigvalsh(f.double()).clamp(min=0) for f in (curvature.inputs, curvature.outputs))
        values = torch.outer(g, a)
    return float((values + prior).log().sum())
