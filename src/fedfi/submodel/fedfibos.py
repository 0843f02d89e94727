"""FedFIbOS: Fisher Importance based Optimal Submodelling for Heterogeneous Federated Learning, arXiv:2609.19559.

| paper | here |
|---|---|
| gamma_n, capacity | `capacities`: ratio of the selectable parameters -> share of clients |
| k_n = ceil(gamma_n d) | `numerics.selection.select` |
| M_F, Eq. 10 and line 6 | `_mask` with `score = "fisher"` |
| F^2 x^2, Eq. 6 and 16 | `score = "fisher2x2"` |
| f-hat, Eq. 8 | `fisher_samples = "example"` |
| f-hat, line 14 | `fisher_samples = "batch"` |
| f-bar, Eq. 9, lines 20-23 | `importance.Averages`, `ema`; rows on disk for clients that took part |
| f-bar_0 = abs(x_0), line 2 | `prior`, `warm_start` |
| Delta, lines 10, 16 and 19 | `start`, `aggregation`, `server_learning_rate` |
| Jaccard of Fig. 3, CV_F of Fig. 4, Eq. 4 | `diagnostics` |

The preset ``as-published`` is Algorithm 1 to the letter for a network without normalisation layers under plain SGD.
The paper gives neither alpha nor eta_s; .9 and 1 are ours. The preset ``all-round`` is the combination that came out
ahead on global, level and local accuracy together (`results/fedfibos-search`): a client measures what it holds, ranks
by F^2 x^2, and its gradients carry FIARSE's factor.

The defaults deviate from the preset, each for a reason:

- `start = "full"`: line 16 makes Delta equal x off the mask, which shrinks every weight that a client does not hold.
- `aggregation = "count"`: line 19 divides by all clients, holders or not; an entry is averaged over its holders, and
  one that nobody held stays bit-identical. `start` then makes no difference.
- `fisher = "dense"`: with f-hat zero off the mask, the mask is provably TopK(abs(x_0)) for ever. The gradient is taken
  with respect to the effective weight at x * M, for all entries; only the update is masked.
- `warm_start = "replace"`: abs(x_0) is 10^3 to 10^7 times a Fisher value and would outlive the run. Where a client
  measures only what it holds (`fisher = "active"`), an entry that it never held ranks by abs(x_0) brought to the
  estimates' mean; otherwise its next mask would be everything that it has not measured.
- `floor = 0.5`: a global top-k can keep nothing of a layer; each keeps at least half of its proportional share, and at
  least one entry where that fits. With `scope = "layer"` each layer keeps ceil(gamma d_l), which needs no floor and
  sums to a few entries more than ceil(gamma d).
- `first_mask = "shared"`: a client's first mask comes from what others have measured instead of from abs(x_0); in the
  first round nobody has, and it is abs(x_0).
- `fisher_storage = "bfloat16"`: half the disk. Its 8 bits of significand stall averages with `ema` well above .9,
  which want `float32`.

In every configuration, the preset included:

- Parameters of normalisation layers are always kept, trained and averaged; d and k count the others. Buffers are
  averaged.
- A and N are the clients that replied: one that failed counts nowhere.
- B of line 14 is the size of each batch, which is smaller where an epoch ends or a client holds little.
- Momentum, weight decay, clipping and schedules are the task's; f-hat is taken from the gradient before the threshold
  factor and before clipping, and clipping sees the gradient after both factor and mask.
- Ties, which the paper leaves open, go to the larger abs(x), then to the lower index.

Options beyond the paper:

- `blend` mixes the shared average into that of a client that has one; `fisher = "global"` is one shared average for
  all (and makes `blend` and `first_mask` idle), which the paper's prose ("EMA of the aggregated Fisher estimates")
  suggests beside its per-client formulas.
- `score = "magnitude"` ranks by abs(x); Fisher values are measured, sent and reported all the same.
- `threshold_factor` ("tcb") multiplies gradients by FIARSE's factor, with the k-th largest abs(x) of each pool as
  threshold, so that the two methods can be compared at equal step sizes.
- `ratio = "width"` takes gamma as the width of a network and keeps as many parameters as a network of that width has.
- A model may rank parameters in several pools, each with its own ceil(gamma d); RoBERTa has FIARSE's three.

Under `Encrypted` a client has its average, and a copy of the model, to itself; estimates are added up, in ciphertexts,
only where a mask may come from those of others. `Private` stands around it at a trusted server (`leaks`, `stepped`).

The masking error reported is the sum of Eq. 4 with the newest averages as F, at the weights that the masks were taken
from. Its scale is that of the estimates (`fisher_samples = "batch"` squares means over a batch), so it is meant to be
compared with the same sum for magnitude's mask, which stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Scalar
from fedfi.federation.rows import Storage
from fedfi.federation.task import Task
from fedfi.federation.training import Gradient, mean_loss_gradient
from fedfi.federation.workbench import fresh_workbench
from fedfi.numerics.fisher import example_squares
from fedfi.numerics.gradients import mixing_layer
from fedfi.numerics.quantization import Quantized, dequantize, quantize
from fedfi.numerics.selection import unpack_bits
from fedfi.submodel.diagnostics import MaskDiagnostics
from fedfi.submodel.entrywise import Entrywise
from fedfi.submodel.holders import HolderMean
from fedfi.submodel.importance import DIGIT_BITS, Averages, Averaging, Round, WarmStart, divided, score, undivided
from fedfi.submodel.maskable import check_maskable
from fedfi.submodel.masked import (
    add_mean,
    receive,
    returned,
    send,
    sent_mask,
    summand,
    summand_layout,
    threshold_factor,
    train_masked,
)
from fedfi.submodel.model import Model, unmarked
from fedfi.submodel.ranking import Scope, best, pool_thresholds, spread
from fedfi.submodel.sizing import fractions

_FISHER = ("fisher:high", "fisher:middle", "fisher:low")


@dataclass(frozen=True)
class FedFIbOSState:
    """The server's state.

    Attributes:
        model: The global model.
        averages: The averages of Fisher estimates.
        levels: The level of each client that took part.
        fractions: The fraction of the selectable parameters at each level.
        assignment: Seed of who is at which level.
    """

    model: Model
    averages: Averages
    levels: dict[str, float]
    fractions: dict[float, float]
    assignment: int


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedFIbOS(Entrywise[FedFIbOSState]):
    """Submodels of the parameters with the largest Fisher information, as each client measures it."""

    score: Annotated[
        Literal["fisher", "fisher2x2", "magnitude"],
        Field(description="what parameters are ranked by: F, F^2 x^2 or |x| (Fisher values travel all the same)"),
    ] = "fisher"
    fisher: Annotated[
        Literal["dense", "active", "masked", "global"],
        Field(
            description="which entries a client measures: all; those it holds; those it holds, the others counting"
            " as zero (literal); all, averaged over clients into one"
        ),
    ] = "dense"
    fisher_samples: Annotated[
        Literal["batch", "example"],
        Field(description="squares of batch gradients, or of each example's (no batch norm then)"),
    ] = "batch"
    fisher_bits: Annotated[Literal[32, 8], Field(description="bits a Fisher value on the wire; 8 is logarithmic")] = 32
    fisher_storage: Annotated[Storage, Field(description="how the server keeps averages on disk")] = "bfloat16"
    ema: Annotated[float, Field(ge=0, lt=1, description="share alpha of the old value in the averages")] = 0.9
    warm_start: Annotated[
        WarmStart, Field(description="what |x_0| is worth at the first estimate: nothing, the same, as it is")
    ] = "replace"
    first_mask: Annotated[Literal["shared", "magnitude"], Field(description="what a newcomer's mask comes from")] = (
        "shared"
    )
    blend: Annotated[
        float, Field(ge=0, le=1, description="weight of the shared average in the score of a client that has its own")
    ] = 0.0
    scope: Annotated[
        Scope, Field(description="one ranking of all parameters, one a block of the network, or one a layer")
    ] = "global"
    floor: Annotated[
        float, Field(ge=0, le=1, description="part of its proportional share that each layer keeps at least")
    ] = 0.5
    start: Annotated[
        Literal["full", "masked"],
        Field(description="what Delta is off the mask under plain aggregation: zero, or x (literal)"),
    ] = "full"
    aggregation: Annotated[
        Literal["count", "plain"],
        Field(description="divide by the entry's holders, or by all clients (literal)"),
    ] = "count"
    threshold_factor: Annotated[bool, Field(description="multiply gradients by FIARSE's factor (tcb)")] = False
    server_learning_rate: Annotated[float, Field(gt=0, description="factor eta_s of the mean update")] = 1.0
    diagnostics: Annotated[bool, Field(description="report overlap, spread, keep rates and masking error")] = True

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-published": {
            "start": "masked",
            "aggregation": "plain",
            "fisher": "masked",
            "warm_start": "raw",
            "first_mask": "magnitude",
            "floor": 0.0,
            "fisher_storage": "float32",
        },
        "all-round": {"fisher": "active", "score": "fisher2x2", "threshold_factor": True},
    }

    def init(self, task: Task, rng: torch.Generator) -> FedFIbOSState:
        """A freshly initialised model; every average starts at |x_0| (line 2)."""
        bench = fresh_workbench(task, rng)
        if self.fisher_samples == "example" and (layer := mixing_layer(bench.module.train())):
            raise InputError(
                f'algorithm.fisher_samples = "example": layer {layer} uses or updates batch statistics, so an example'
                f' has no gradient of its own; take a model without (nearest valid: "batch")'
            )
        sizes = fractions(self.ratio, self.capacities, task, bench.module)
        check_maskable(bench, sizes.values())
        model = Model.of(bench)
        return FedFIbOSState(
            model=model,
            averages=Averages.new(model.pool.abs(), self.fisher_storage),
            levels={},
            fractions=sizes,
            assignment=int(torch.randint(2**31, (), generator=rng)),
        )

    def packet_of(self, state: FedFIbOSState, client: ClientId, level: float, rng: torch.Generator) -> Packet:
        """The submodel of a client, by its own average where it has one."""
        packet = send(state.model, self._mask(state, self._importance(state, client), level), {"ratio": level})
        if not self.threshold_factor:
            return packet
        size = state.model.pool.abs()
        largest = best(state.model.layout, size, state.fractions[level], scope="global")
        values = pool_thresholds(state.model.layout, size, largest)
        return replace(packet, tensors={**packet.tensors, "thresholds": values})

    def reply_layout(self, state: FedFIbOSState, packet: Packet) -> Layout:
        """The update of what was sent, and a Fisher value for each entry that the client measures."""
        layout = state.model.layout
        measured = layout.pool if self._measures_all else len(packet.tensors["kept"]) - (layout.size - layout.pool)
        base = returned(state.model, packet)
        dtype = torch.uint8 if self.fisher_bits == 8 else torch.float32
        scalars: dict[str, type[Scalar]] = {"loss": float, "examples": int}
        if self.fisher_bits == 8:
            scalars["fisher_scale"] = float
        least = {"examples": 1, "fisher": 0, "fisher_scale": 0}
        return Layout({**base.tensors, "fisher": ((measured,), dtype)}, scalars, least=least)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Lines 10 to 17."""
        layout = client.workbench.layout
        mask = receive(packet, client.workbench)
        fisher = torch.zeros(len(mask), device=client.device)
        factor = None
        if self.threshold_factor:
            factor = partial(threshold_factor, threshold=spread(layout, packet.tensors["thresholds"]).to(mask.device))
        trained, back = train_masked(client, mask, self._measured_gradient(client, fisher), factor)
        fisher /= trained.steps
        scalars: dict[str, float] = {"loss": trained.loss, "examples": trained.examples}
        back["fisher"] = fisher if self._measures_all else fisher[mask]
        if self.fisher_bits == 8:
            coded = quantize(back["fisher"], "log8")
            back["fisher"], scalars["fisher_scale"] = coded.codes, coded.scale
        return Packet(back, scalars)

    def aggregate(
        self, state: FedFIbOSState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedFIbOSState, Metrics]:
        """Lines 19 to 23: the mean update, and the averages of the clients that took part."""
        mean, loss = HolderMean(state.model, self.aggregation, self.start), WeightedMean()
        averages, averaging = self._begun(state), self._averaging
        levels, masks = dict(state.levels), {}
        for reply in replies:
            masks[reply.client] = reply.sent.blobs["mask"]
            levels[reply.client] = float(reply.sent.scalars["ratio"])
            mean.add(sent_mask(reply.sent, state.model), reply.packet.tensors["update"], unmarked(reply.packet.tensors))
            mask = unpack_bits(masks[reply.client], state.model.layout.pool)
            averages.add(reply.client, *self._estimate(reply.packet, mask), averaging)
            loss.add_scalar("loss", reply.packet.scalars["loss"], float(reply.packet.scalars["examples"]))
        after = replace(
            state, model=mean.next(self.server_learning_rate), averages=averages.end(averaging), levels=levels
        )
        return after, {"train/loss": loss.scalar("loss")} | self._diagnosed(state, after, masks)

    def summand_layout(self, state: FedFIbOSState) -> Layout:
        """See `summand`."""
        layout, pool = summand_layout(state.model), ((state.model.layout.pool,), torch.float32)
        return replace(
            layout, tensors={**layout.tensors, **dict.fromkeys(_FISHER if self._shares_fisher else (), pool)}
        )

    def least_bits(self) -> int:
        """Those of a digit of Fisher values, where they are summed."""
        return DIGIT_BITS if self._shares_fisher else 0

    def summand(self, state: FedFIbOSState, sent: Packet, reply: Packet) -> Packet:
        """The dense update and what was held; where clients need the shared average, the estimate of Fisher values."""
        tensors = summand(state.model, sent, reply)
        if self._shares_fisher:
            estimate, _ = self._estimate(reply, unpack_bits(sent.blobs["mask"], state.model.layout.pool))
            tensors |= zip(_FISHER, divided(estimate), strict=True)
        return Packet(tensors)

    def replied(self, state: FedFIbOSState, reply: Reply) -> FedFIbOSState:
        """The client's own average, and its level."""
        averages, mask = self._begun(state), unpack_bits(reply.sent.blobs["mask"], state.model.layout.pool)
        averages.add(reply.client, *self._estimate(reply.packet, mask), self._averaging)
        levels = state.levels | {reply.client: float(reply.sent.scalars["ratio"])}
        return replace(state, averages=averages.kept(), levels=levels)

    def absorb(self, state: FedFIbOSState, round: int, mean: Packet) -> FedFIbOSState:
        """The mean update, and the average that all share, as far as masks need it."""
        over = HolderMean(state.model, self.aggregation, self.start)
        add_mean(over, state.model, mean.tensors)
        averages = state.averages
        if self._shares_fisher:
            pooled, held = undivided([mean.tensors[n] for n in _FISHER]), mean.tensors["held"]
            seen = held > 0 if self.fisher == "active" and not bool((held > 0).all()) else None
            pooled = pooled / held.where(held > 0, 1) if self.fisher == "active" else pooled
            averages = averages.following(pooled, seen, self._averaging)
        return replace(state, model=over.next(self.server_learning_rate), averages=averages)

    def stepped(self, state: FedFIbOSState, update: Tensor) -> FedFIbOSState:
        """The model moved by a mean update over all clients; buffers and averages stay."""
        over = HolderMean(state.model, "plain")
        over.add_dense(update, torch.zeros_like(update), {})
        return replace(state, model=over.next(self.server_learning_rate))

    def leaks(self) -> str:
        """Options under which more than the sum of updates reaches other clients."""
        if self.aggregation != "plain":
            return "how many hold an entry tells of their data (nearest valid: aggregation = 'plain')"
        if self.start != "full":
            return "updates hold the weights off the mask, which clipping would cut (nearest valid: start = 'full')"
        if self.fisher_bits == 8:
            return "the scale of Fisher values would be written down (nearest valid: fisher_bits = 32)"
        if not self._shares_fisher:
            return ""
        nearest = "fisher = 'dense'" if self.fisher == "global" else "blend = 0"
        nearest = nearest if self.first_mask == "magnitude" else "first_mask = 'magnitude'"
        return f"masks would come from what others have measured, without noise (nearest valid: {nearest})"

    def level(self, state: FedFIbOSState, ratio: float) -> Packet:
        """The submodel of one level, by the mean average of the clients at that level; by that of all if none is."""
        members = [c for c, level in state.levels.items() if level == ratio and c in state.averages.rows]
        common = state.averages.common()
        importance = state.averages.mean_of(members) if members else common
        if self.blend:
            importance = (1 - self.blend) * importance + self.blend * common
        return send(state.model, self._mask(state, importance, ratio), {})

    @property
    def _measures_all(self) -> bool:
        return self.fisher in ("dense", "global")

    @property
    def _shares_fisher(self) -> bool:
        """Whether a mask may come from what others have measured."""
        if self.score == "magnitude":
            return False
        return self.first_mask == "shared" or self.fisher == "global" or self.blend > 0

    @property
    def _averaging(self) -> Averaging:
        return Averaging(self.ema, self.warm_start)

    def _begun(self, state: FedFIbOSState) -> Round:
        return state.averages.begin(own=self.fisher != "global")

    def _mask(self, state: FedFIbOSState, importance: Tensor, ratio: float) -> Tensor:
        return self._select(score(self.score, importance, state.model.pool), ratio, state)

    def _select(self, scores: Tensor, ratio: float, state: FedFIbOSState) -> Tensor:
        model, fraction = state.model, state.fractions[ratio]
        return best(model.layout, scores, fraction, scope=self.scope, floor=self.floor, ties=model.pool.abs())

    def _importance(self, state: FedFIbOSState, client: ClientId) -> Tensor:
        averages = state.averages
        if client not in averages.rows:
            newcomer = self.first_mask == "magnitude" and self.fisher != "global"
            return averages.prior if newcomer else averages.common()
        own = averages.own(client)
        return own if not self.blend else (1 - self.blend) * own + self.blend * averages.common()

    def _estimate(self, packet: Packet, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """The estimate `[pool]`, zero where nothing was measured, and which entries it speaks of (None: all)."""
        measured = packet.tensors["fisher"]
        if self.fisher_bits == 8:
            measured = dequantize(Quantized(codes=measured, scale=float(packet.scalars["fisher_scale"]), kind="log8"))
        if self._measures_all:
            return measured, None
        estimate = torch.zeros(len(mask)).masked_scatter_(mask, measured)
        return estimate, mask if self.fisher == "active" else None

    def _measured_gradient(self, client: Client, fisher: Tensor) -> Gradient:
        """The gradient of a batch, whose squares are added to `fisher` on the way."""
        if self.fisher_samples == "example":
            return _example_gradient(client, fisher)
        gradient, grad = mean_loss_gradient(client), client.workbench.vector.grad
        assert grad is not None  # made with the workbench
        slopes = grad[: len(fisher)]

        def measured(inputs: Tensor, targets: Tensor) -> Tensor:
            loss = gradient(inputs, targets)
            fisher.addcmul_(slopes, slopes, value=1 / len(targets))
            return loss

        return measured

    def _diagnosed(self, state: FedFIbOSState, after: FedFIbOSState, masks: Mapping[str, bytes]) -> Metrics:
        """What the round's masks look like, beside the averages that the next ones will come from."""
        if not self.diagnostics:
            return {}
        layout, size = state.model.layout, state.model.pool.abs()
        layers = list(zip(layout.names, layout.pool_sizes, strict=False))
        looked = MaskDiagnostics(state.model.pool, layers, lambda ratio: self._select(size, ratio, state))
        for client, mask in masks.items():
            kept = unpack_bits(mask, state.model.layout.pool)
            looked.add(after.levels[client], kept, self._importance(after, client))
        return looked.metrics()


def _example_gradient(client: Client, fisher: Tensor) -> Gradient:
    bench, loss = client.workbench, client.task.loss
    grad = bench.vector.grad
    assert grad is not None  # made with the workbench

    def measured(inputs: Tensor, targets: Tensor) -> Tensor:
        slopes, squares, value = example_squares(bench.module, inputs, targets, loss)
        grad.copy_(bench.layout.join(slopes))
        fisher.add_(bench.layout.join(squares)[: len(fisher)])
        return value

    return measured
