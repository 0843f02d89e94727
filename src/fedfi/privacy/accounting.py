"""The one door to `dp-accounting` (extra `dp`): noise for a budget, and the budget that noise has used.

Two data sets are neighbours when one client's data are replaced by others (replace-one): the number of clients is
public, as rounds of fixed size assume. A clipped update has norm C at most, so replacing it moves a sum by 2 C; a
noise multiplier z here means a standard deviation of z C of the noise on that sum, and the mechanism is Gaussian with
multiplier z / 2 in units of its sensitivity.

| participation | composition |
|---|---|
| all clients | exact: T Gaussians of multiplier s are one of s / sqrt(T), by the analytic formula |
| m of n, drawn without replacement | Renyi divergences (RDP) of the subsampled Gaussian |

Drawing m of n is not Poisson sampling, whose smaller epsilon must not be claimed for it.
"""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfi.errors import InputError
from fedfi.numerics.rounding import rounded

LEAST = 1e-9
"""Smallest noise multiplier that is accounted for: its epsilon, above 1e18, says that nothing is hidden."""
_MOST = 1e6
"""Largest that is tried for a budget."""
_ORDERS = [*range(2, 65), 96, 128, 256]
"""Renyi orders; whole ones, for which the subsampled Gaussian has a closed form."""


def _library() -> Any:
    try:
        import dp_accounting
        from dp_accounting import rdp

        dp_accounting.get_epsilon_gaussian  # noqa: B018 - which old versions lack
    except (ImportError, AttributeError) as error:
        raise InputError(f"differential privacy needs the extra 'dp': pip install 'fedfi[dp]' ({error})") from error
    return dp_accounting, rdp


def available() -> bool:
    """Whether dp-accounting can be loaded, and is not too old."""
    try:
        _library()
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class Sampling:
    """Who takes part in a round.

    Attributes:
        clients: n, all clients.
        cohort: m, those drawn for a round.
    """

    clients: int
    cohort: int

    def __post_init__(self) -> None:
        """Refuses impossible cohorts."""
        if not 1 <= self.cohort <= self.clients:
            nearest = min(max(self.cohort, 1), self.clients)
            raise InputError(f"a cohort of {self.cohort} of {self.clients} clients (nearest valid: {nearest})")


def epsilon(multiplier: float, rounds: int, delta: float, sampling: Sampling) -> float:
    """Epsilon after some rounds.

    Args:
        multiplier: z: the noise on the sum has standard deviation z C.
        rounds: How many were released.
        delta: Of (epsilon, delta), in (0, 1).
        sampling: Who took part.

    Raises:
        InputError: For a multiplier below `LEAST`, or a delta out of range.
    """
    if not multiplier >= LEAST:
        raise InputError(
            f"noise = {multiplier:g}: hides nothing, expected at least {LEAST:g} (nearest valid: {LEAST:g})"
        )
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta:g}: expected above 0 and below 1")
    if rounds == 0:
        return 0.0
    return _epsilon(multiplier, rounds, delta, sampling)


@functools.lru_cache(maxsize=1024)
def _epsilon(multiplier: float, rounds: int, delta: float, sampling: Sampling) -> float:
    dp, rdp = _library()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():  # of its logarithms, at the ends of its search
            warnings.simplefilter("ignore", RuntimeWarning)
            return _composed(dp, rdp, multiplier, rounds, delta, sampling)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise InputError(
            f"noise = {multiplier:g} and delta = {delta:g}: no epsilon can be computed of {rounds} rounds: {error}"
        ) from error


def _composed(dp: Any, rdp: Any, multiplier: float, rounds: int, delta: float, sampling: Sampling) -> float:
    everybody = float(dp.get_epsilon_gaussian(multiplier / 2 / math.sqrt(rounds), delta))
    if sampling.cohort == sampling.clients:
        return everybody
    event = dp.GaussianDpEvent(multiplier / 2)
    accountant = rdp.RdpAccountant(_ORDERS, neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    sampled = dp.SampledWithoutReplacementDpEvent(sampling.clients, sampling.cohort, event)
    accountant.compose(dp.SelfComposedDpEvent(sampled, rounds))
    subsampled = float(accountant.get_epsilon(delta))
    return min(subsampled, everybody)


def multiplier(target: float, rounds: int, delta: float, sampling: Sampling) -> float:
    """The least noise multiplier (to .5 %) whose epsilon after `rounds` is at most `target`.

    Raises:
        InputError: For a target that is not positive, or that noise of a million clips would not keep.
    """
    if target <= 0:
        raise InputError(f"epsilon = {target}: must be above 0")
    low, high = 1e-3, 1.0
    while epsilon(high, rounds, delta, sampling) > target:
        if high >= _MOST:
            nearest = rounded(epsilon(_MOST, rounds, delta, sampling), 3, up=True)
            raise InputError(
                f"epsilon = {target:g}: for {rounds} rounds at delta = {delta:g} it would need noise of more than"
                f" {_MOST:g} times the clip (nearest valid: {nearest})"
            )
        low, high = high, min(high * 2, _MOST)
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle, rounds, delta, sampling) <= target else (middle, high)
    return high
