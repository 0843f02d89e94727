"""Transport plans between layers of unequal widths, or blurred ones: the only door to POT (extra `ot`).

Shape convention: rows are the U' units that are matched to, columns the U units that are matched. Marginals are
uniform. Plans are returned divided by their row marginals, so that a row sums to 1 and `plan @ values` moves the
units `[U, D]` to the places `[U', D]` ("correction" of OTFusion [1]).

[1] Singh, Jaggi: Model fusion via optimal transport, NeurIPS 2020.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

__all__ = ["exact_plan", "sinkhorn_plan"]


def exact_plan(costs: Tensor) -> Tensor:
    """The plan `[U', U]` of least cost between uniform measures, whatever their numbers of units.

    Args:
        costs: `[U', U]`, finite.

    Raises:
        ValueError: for costs that are not a matrix of finite numbers.
        ModuleNotFoundError: if POT is not installed.
    """
    rows, columns = _marginals(costs)
    plan: Tensor = _pot().emd(rows, columns, costs.double())
    return plan * len(rows)


def sinkhorn_plan(costs: Tensor, regularization: float = 0.01, iterations: int = 5000) -> Tensor:
    """The plan `[U', U]` of least cost minus entropy, by Sinkhorn iterations in the log domain.

    Args:
        costs: `[U', U]`, finite; they are divided by their largest, so that `regularization` has no unit.
        regularization: Weight of the entropy, positive.
        iterations: At most so many.

    Raises:
        ValueError: for costs that are not a matrix of finite numbers, or a regularization that is not positive.
        ModuleNotFoundError: if POT is not installed.
    """
    rows, columns = _marginals(costs)
    if not regularization > 0:
        raise ValueError(f"regularization is {regularization}; expected a positive number")
    scaled = costs.double() / max(float(costs.max()), torch.finfo(torch.float64).tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT warns where the last digits have not settled; rows are made exact below
        plan: Tensor = _pot().sinkhorn(
            rows, columns, scaled, regularization, method="sinkhorn_log", numItermax=iterations
        )
    return plan / plan.sum(1, keepdim=True)


def _marginals(costs: Tensor) -> tuple[Tensor, Tensor]:
    if costs.ndim != 2 or not costs.numel() or not bool(torch.isfinite(costs).all()):
        raise ValueError(f"costs are {list(costs.shape)}; expected a matrix [U', U] of finite numbers")
    return tuple(torch.full((n,), 1 / n, dtype=torch.float64) for n in costs.shape)  # type: ignore[return-value]


def _pot() -> Any:
    try:
        import ot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("transport plans need POT: pip install 'fedfi[ot]'", name="ot") from error
    return ot
