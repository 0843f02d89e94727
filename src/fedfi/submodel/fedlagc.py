"""FedLAGC: Hu, Liao, Wu, Yang, Chen, Towards High Performance System-Heterogeneous Federated Learning via
Layer-Adaptive Submodel Extraction and Gradient Correction, AAAI 2026, doi:10.1609/aaai.v40i26.39338.

**A reconstruction.** Of the paper only the abstract was at hand. The formulas below are as another implementation,
that of the benchmark FedProC (github.com/nclabteam/FedProC), reports them from the paper.

| paper, as reported | here |
|---|---|
| critical parts, always kept: first and last layer, norms, biases; d~ of them | `keep_edges`; `Layers.always` |
| S_l, the mean of abs(w) over a layer's parameters, its bias too | `Layers.whole` |
| r_l d_l = (d_n - d~) log(1 + S_l) d_l / sum_j log(1 + S_j) d_j | `shares`, of each layer's weights |
| the largest abs(w) of each layer, from its theta~ up | `Layers.mask`, `Layers.thresholds` |
| STE, g (1 + 2 theta~ abs(w) / (theta~ + abs(w))^2) | `masked.threshold_factor`, `threshold_factor` |
| g~ = (g - h(t) lambda) * M, lambda a client's own | `correction`, kept in the client's memory |
| lambda <- lambda + beta (end - start) * M | `correction_rate` is beta; `correction = "reported"` |
| h(t) = 1 for t < T / 4, else 0 | `correction_rounds` |
| mean over the holders of an entry | `holders.HolderMean` |

Assumptions and deviations:

- **The correction's sign.** As reported, lambda points where the client has moved, and subtracting it from the gradient
  moves it further that way: in a direction without curvature, the sum of its movements grows by the factor 1 + learning
  rate x steps x beta with every round that it takes part in. The abstract speaks of a drift that is corrected. The
  default, `correction = "opposed"`, therefore has the other sign, lambda <- lambda - beta (end - start) * M, which is
  FedDyn's linear term (Acar et al., ICLR 2021): it comes to rest where a client no longer moves away from the model
  that it was given. `"reported"` is the formula to the letter, `"none"` leaves the correction out.
- **h(t).** A method does not know how many rounds a run has, so the first quarter has to be given as a number:
  `correction_rounds`. Without one the correction does not end. lambda is kept only as long as it is used.
- beta = 0.1 is the other implementation's default, not known to be the paper's.
- d_n is a share of the parameters of convolutions, linear layers and embeddings, as for every method here; norms are
  kept on top of it. First and last are meant among the layers that may be selected, in the order of definition;
  where a model ranks several pools, in the order of the pools, of which the first here is one of embeddings (RoBERTa).
  Pools make no difference otherwise: the budget is one.
- **Critical parts above the budget.** A level whose d_n does not exceed d~ is refused when the run begins, with the
  smallest one that fits. `keep_edges = false` ranks the first and the last layer as the others.
- A layer whose share exceeds its size is kept whole, and the rest is shared among the others by the same rule; counts
  are whole by largest remainder. Where every weight is zero, a layer's share is its size.
- The factor applies to ranked weights alone: what is always kept has no threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.packet import Tree
from fedfi.federation.training import Gradient, Trained, mean_loss_gradient
from fedfi.federation.workbench import VectorLayout
from fedfi.numerics.selection import count_for, top_k_mask
from fedfi.submodel.masked import threshold_factor, train_masked
from fedfi.submodel.model import Model
from fedfi.submodel.unstructured import Unstructured, UnstructuredState

_MEMORY = "lambda"


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedLAGC(Unstructured):
    """The largest weights of each layer, by budgets that follow the layers' mean weight, and corrected gradients."""

    keep_edges: Annotated[bool, Field(description="always keep the first and the last layer")] = True
    threshold_factor: Annotated[bool, Field(description="multiply gradients by FIARSE's factor, layer by layer")] = True
    correction: Annotated[
        Literal["opposed", "reported", "none"],
        Field(description="sign of the client's past movement in its gradients: against it, along it, not at all"),
    ] = "opposed"
    correction_rate: Annotated[float, Field(gt=0, description="share beta of a round's movement")] = 0.1
    correction_rounds: Annotated[
        int | None, Field(ge=1, description="rounds with corrected gradients (paper: a quarter of all); none = all")
    ] = None

    def check(self, state: UnstructuredState) -> None:
        """Refuses levels that are too small for what is always kept.

        Raises:
            InputError: With the smallest one that fits.
        """
        layers = Layers.of(state.model.layout, self.keep_edges)
        for ratio, fraction in state.fractions.items():
            layers.check(ratio, fraction)

    def mask(self, model: Model, fraction: float, rng: torch.Generator) -> Tensor:
        """What is always kept, and the largest weights of each layer."""
        return Layers.of(model.layout, self.keep_edges).mask(model.pool, fraction)

    def train(self, client: Client, mask: Tensor) -> tuple[Trained, Tree]:
        """Plain training under a fixed mask, with the layers' factors and the client's correction."""
        correcting = self.correction != "none" and client.round < (self.correction_rounds or client.round + 1)
        if not correcting:
            client.memory.pop(_MEMORY, None)
        trained, back = train_masked(client, mask, self._gradient(client, mask, correcting))
        if correcting:
            self._remember(client, mask, back["update"])
        return trained, back

    def _gradient(self, client: Client, mask: Tensor, correcting: bool) -> Gradient:
        """The gradient times the layers' factors, less the correction."""
        bench, plain = client.workbench, mean_loss_gradient(client)
        weights, grad = bench.vector.detach()[: bench.layout.pool], bench.vector.grad
        assert grad is not None  # made with the workbench
        slopes, past = grad[: len(weights)], client.memory.get(_MEMORY) if correcting else None
        past = None if past is None else past.to(grad.device)
        threshold = Layers.of(bench.layout, self.keep_edges).thresholds(weights, mask)

        def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
            loss = plain(inputs, targets)
            if self.threshold_factor:
                slopes.mul_(threshold_factor(weights, threshold))
            if past is not None:
                grad.sub_(past)
            return loss

        return gradient

    def _remember(self, client: Client, mask: Tensor, update: Tensor) -> None:
        """Lambda after a round, given start minus end of what the client held."""
        layout, sign = client.workbench.layout, -1 if self.correction == "reported" else 1
        held = torch.cat([mask, mask.new_ones(layout.size - layout.pool)])
        before = client.memory.get(_MEMORY, torch.zeros(layout.size)).to(update.device)
        movement = torch.zeros_like(before).masked_scatter_(held, update)
        client.memory[_MEMORY] = before + sign * self.correction_rate * movement


@dataclass(frozen=True)
class Layers:
    """The pool of selectable entries, seen as layers.

    Attributes:
        always: The entries that are always kept `[pool]`.
        ranked: Where the entries of each ranked layer are: positions in the pool.
        whole: Where all of that layer's entries are, its bias too.
    """

    always: Tensor
    ranked: list[Tensor]
    whole: list[Tensor]

    @staticmethod
    def of(layout: VectorLayout, keep_edges: bool) -> Layers:
        """The layers of a layout; a layer is the parameters of one module."""
        names = layout.names[: len(layout.pool_sizes)]
        owners = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        edges = {owners[0], owners[-1]} if keep_edges and owners else set()
        always = torch.ones(layout.pool, dtype=torch.bool)
        parts: dict[str, list[Tensor]] = {owner: [] for owner in owners}
        weights: dict[str, list[Tensor]] = {owner: [] for owner in owners}
        start = 0
        for name, size in zip(names, layout.pool_sizes, strict=True):
            owner, _, leaf = name.rpartition(".")
            place = torch.arange(start, start + size)
            parts[owner].append(place)
            if owner not in edges and not leaf.endswith("bias"):
                weights[owner].append(place)
                always[place] = False
            start += size
        chosen = [owner for owner in owners if weights[owner]]
        return Layers(always, [torch.cat(weights[o]) for o in chosen], [torch.cat(parts[o]) for o in chosen])

    def check(self, ratio: float, fraction: float) -> None:
        """Refuses a level that has no room for a ranked weight.

        Raises:
            InputError: With the smallest fraction that fits.
        """
        pool, kept = len(self.always), int(self.always.sum())
        budget = count_for(fraction, pool)
        if fraction < 1 and kept == pool:
            raise InputError(
                f"level {ratio:g} asks for a part of the model, but FedLAGC always keeps biases and the first and last"
                " layer, and this model has nothing else; take one with more layers, or set keep_edges = false"
            )
        if fraction < 1 and budget <= kept:
            raise InputError(
                f"level {ratio:g} is {budget} of {pool} parameters, but FedLAGC always keeps {kept}, in biases and the"
                f" first and last layer; a level must exceed {kept / pool:.4g} of the parameters, or set"
                f" keep_edges = false"
            )

    def mask(self, weights: Tensor, fraction: float) -> Tensor:
        """The kept entries `[pool]`."""
        size, mask = weights.abs(), self.always.clone()
        budget = count_for(fraction, len(mask)) - int(mask.sum())
        importance = [float(size[whole].double().mean()) for whole in self.whole]
        for place, count in zip(self.ranked, shares(importance, [len(p) for p in self.ranked], budget), strict=True):
            mask[place] = top_k_mask(size[place], count)
        return mask

    def thresholds(self, weights: Tensor, mask: Tensor) -> Tensor:
        """The smallest kept |w| of each ranked layer `[pool]`; 0 for what is always kept, and for a whole layer."""
        result, size = torch.zeros_like(weights), weights.abs()
        for place in self.ranked:
            kept = size[place][mask[place]]
            if 0 < len(kept) < len(place):
                result[place] = kept.min()
        return result


def shares(importance: Sequence[float], sizes: Sequence[int], budget: int) -> list[int]:
    """How many entries each layer keeps: as log(1 + importance) times its size, at most its size.

    Args:
        importance: The mean of |w| of each layer.
        sizes: Its number of ranked entries.
        budget: How many entries are kept of all, at most their number.

    Returns:
        Counts that sum to the budget, by largest remainder, the earlier layer where remainders are equal.
    """
    limits = torch.tensor(sizes, dtype=torch.float64)
    wanted = torch.tensor(importance, dtype=torch.float64).log1p() * limits
    left, full = float(budget), torch.zeros(len(sizes), dtype=torch.bool)
    quotas = limits
    while not full.all():
        open_ = torch.where(full, 0, wanted)
        if not open_.any():
            open_ = torch.where(full, 0, limits)
        quotas = torch.where(full, limits, left * open_ / open_.sum())
        over = ~full & (quotas >= limits)
        if not over.any():
            break
        left -= float(limits[over].sum())
        full |= over
    counts = quotas.floor().long()
    rest = torch.where(full, -1, quotas - counts)
    counts[rest.argsort(descending=True, stable=True)[: budget - int(counts.sum())]] += 1
    return counts.tolist()
