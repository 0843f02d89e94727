"""What a round's submodels look like: overlap with magnitude, spread of Fisher information, layers, masking error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fedfi.federation.algorithm import Metrics
from fedfi.numerics.fisher import coefficient_of_variation, masking_error
from fedfi.numerics.selection import jaccard, keep_rates
from fedfi.submodel.capacities import level_name


@dataclass
class MaskDiagnostics:
    """Gathers over the clients of a round, then averages within each level.

    Args:
        weights: The selectable entries of the round's model `[pool]`.
        layers: Their names and sizes, in order.
        by_magnitude: ratio -> the mask that magnitude would have chosen, under the same scope and floor.
    """

    weights: Tensor
    layers: list[tuple[str, int]]
    by_magnitude: Callable[[float], Tensor]
    _sums: dict[str, list[float]] = field(default_factory=dict)
    _rates: dict[str, list[list[float]]] = field(default_factory=dict)
    _magnitude_masks: dict[float, Tensor] = field(default_factory=dict)

    def add(self, ratio: float, mask: Tensor, importance: Tensor) -> None:
        """Adds one client: its level, its mask, and the Fisher average that the next mask will come from."""
        level = level_name(ratio)
        if ratio not in self._magnitude_masks:
            self._magnitude_masks[ratio] = self.by_magnitude(ratio)
        other = self._magnitude_masks[ratio]
        self._note(f"jaccard/{level}", jaccard(mask, other))
        self._note("cv_fisher", coefficient_of_variation(importance))
        self._note(f"masking_error/{level}", masking_error(importance, self.weights, mask))
        self._note(f"masking_error_magnitude/{level}", masking_error(importance, self.weights, other))
        self._rates.setdefault(level, []).append(keep_rates(mask, [size for _, size in self.layers]))

    def metrics(self) -> Metrics:
        """Means by level; a layer of which a submodel keeps nothing is a note."""
        result: Metrics = {key: sum(values) / len(values) for key, values in self._sums.items()}
        result["cv_magnitude"] = coefficient_of_variation(self.weights.abs())
        for level, rates in self._rates.items():
            lowest = 1.0
            for i, (layer, _) in enumerate(self.layers):
                mean = sum(r[i] for r in rates) / len(rates)
                result[f"keep/{level}/{layer}"] = mean
                lowest = min(lowest, *(r[i] for r in rates))
                empty = sum(r[i] == 0 for r in rates)
                if empty:
                    result[f"empty/{level}/{layer}"] = (
                        f"{empty} of {len(rates)} submodels at level {level} keep nothing of {layer}"
                    )
            result[f"keep_lowest/{level}"] = lowest
        return result

    def _note(self, key: str, value: float) -> None:
        self._sums.setdefault(key, []).append(value)
