"""FedRAP: Li, Long and Zhou, Federated Recommendation with Additive Personalization, ICLR 2024, arXiv:2301.09109.

| paper | here |
|---|---|
| D_i, a user's own item table | memory `personal` |
| C, the table that all share | `FedRAPState.common`, sent each round, averaged |
| score from D_i + C by a private linear layer | memory `weight`, `bias` |
| minus lambda times the squared distance of D_i and C, so that they differ | `independence` |
| mu times the absolute values of C, so that it is sparse | `sparsity` |

As in the authors' code both regularisers are means over the rows of a batch, and a user ranks by its own table and the
newest C.

Deviations: weights of the regularisers are constant; the paper lets them rise, but the code never uses the risen ones.
Step sizes are constant within a round, where the code multiplies them by .95 after each batch. Rounds are judged as
they are, where the code picks the one that is best on the *test* items. Own tables begin with N(0, 1) draws that all
users share, whatever `[model] scale` says of the shared one. The step size of both tables is learning_rate * items *
`item_rate`, as for other methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor
from torch.nn import functional

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.numerics.steady import elementwise, matmul
from fedfi.recsys import many, single
from fedfi.recsys.backbones import LinearHead
from fedfi.recsys.recipe import Recipe, fresh_items, recipe_of
from fedfi.recsys.recommender import TABLES_NOT_PRIVATE, ItemRate, Recommender


@dataclass(frozen=True)
class FedRAPState:
    """The table that all share ``[items, d]``."""

    common: Tensor


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedRAP(Recommender[FedRAPState]):
    """A shared and a private item table, whose rows are added."""

    item_rate: ItemRate = 4.0
    independence: Annotated[float, Field(ge=0, description="lambda, weight of the difference of the tables")] = 0.1
    sparsity: Annotated[float, Field(ge=0, description="mu, weight of the shared table's absolute values")] = 0.01

    linear: ClassVar[bool] = True
    weights: ClassVar[Literal["uniform"]] = "uniform"
    refused: ClassVar[Mapping[str, str]] = TABLES_NOT_PRIVATE

    def init(self, task: Task, rng: torch.Generator) -> FedRAPState:
        """A fresh shared table."""
        recipe_of(task, 0, self.item_rate)
        return FedRAPState(fresh_items(task, rng, len(task.data.clients)).clone())

    def configure(
        self, state: FedRAPState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the shared table."""
        packet = Packet({"items": state.common})
        return ((client, packet) for client in self.sample(clients, rng))

    def reply_layout(self, state: FedRAPState, packet: Packet) -> Layout:
        """A trained copy of the shared table."""
        return Layout.like({"items": state.common}, loss=float)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains both tables and the head."""
        common = packet.tensors["items"]
        own = {n: client.memory.get(n, t) for n, t in _fresh(common.shape, client.seed).items()}
        tensors = {n: t.clone().requires_grad_() for n, t in {**own, "common": common}.items()}
        recipe = recipe_of(client.task, client.round, self.item_rate)
        rates = {n: recipe.item_rate if n in ("personal", "common") else recipe.rate for n in tensors}
        total, count = 0.0, 0
        for items, labels in single.batches(client, recipe, "train"):
            mine, shared = tensors["personal"][items], tensors["common"][items]
            logits = (mine + shared) @ tensors["weight"] + tensors["bias"]
            loss = functional.binary_cross_entropy_with_logits(logits, labels)
            whole = loss - self.independence * (mine - shared).square().mean() + self.sparsity * shared.abs().mean()
            gradients = torch.autograd.grad(whole, list(tensors.values()))
            norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            factor = single.clip_factor(norm, recipe.clip)
            with torch.no_grad():
                for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
                    tensor -= rates[name] * factor * gradient
            total, count = total + loss.item() * len(items), count + len(items)
        for name in own:
            client.memory[name] = tensors[name]
        return Packet({"items": tensors["common"].detach()}, {"loss": total / count})

    def cohort_update(self, cohort: Cohort) -> Iterable[Packet]:
        """The same for many clients."""
        common, count = cohort.packets[0].tensors["items"], len(cohort)
        items, dimension = common.shape
        fresh = _fresh(common.shape, cohort.seed)
        tables, had = cohort.memory.create("personal", common.shape, common.dtype), cohort.has("personal")
        for row in cohort.rows[~had].tolist():
            tables[row] = fresh["personal"]
        cohort.memory.present("personal")[cohort.rows] = True
        weight, bias = (cohort.read(n, fresh[n]) for n in ("weight", "bias"))
        shared = common.repeat(count, 1, 1)
        recipe = recipe_of(cohort.task, cohort.round, self.item_rate)
        scratch = torch.zeros(2, count * items)
        losses, sizes = torch.zeros(count), torch.zeros(count)
        for batch in many.batches(cohort, recipe, "train"):
            flat = (tables.view(-1, dimension), shared.view(-1, dimension))
            losses += self._step(flat, cohort.rows * items, weight, bias, batch, recipe, scratch)
            sizes += batch.sizes
        cohort.write("weight", weight)
        cohort.write("bias", bias)
        means = (losses / sizes).tolist()
        return (Packet({"items": shared[i]}, {"loss": value}) for i, value in enumerate(means))

    def _step(
        self,
        tables: tuple[Tensor, Tensor],
        base: Tensor,
        weight: Tensor,
        bias: Tensor,
        batch: many.Batch,
        recipe: Recipe,
        scratch: Tensor,
    ) -> Tensor:
        """A step of many clients on own and shared tables ``[rows, d]``; the sums of their losses ``[n]``.

        `scratch` ``[2, n * items]`` is zero before and after.
        """
        client, count = batch.client, len(batch.sizes)
        place = client * (scratch.shape[1] // count) + batch.item
        rows = (base[client] + batch.item, place)
        mine, shared = (table.index_select(0, row) for table, row in zip(tables, rows, strict=True))
        own, each = weight.index_select(0, client), batch.sizes.clamp(min=1).to(weight.dtype)[client]
        logits = ((mine + shared) * own).sum(1) + bias[client, 0]
        g = (elementwise(torch.sigmoid, logits) - batch.label) / each
        losses = _sum(elementwise(functional.softplus, logits) - batch.label * logits, client, count)
        of_weight = torch.zeros_like(weight).index_add_(0, client, g[:, None] * (mine + shared))
        of_bias = _sum(g, client, count)
        scratch[0].scatter_add_(0, place, g)
        scratch[1].scatter_add_(0, place, torch.ones_like(g))
        pull, times = scratch[0, place], scratch[1, place]  # sums over the examples of an item, and their number
        scratch[:, place] = 0.0
        share = (times / each / weight.shape[1])[:, None]
        apart = (2.0 * self.independence) * share * (mine - shared)
        of_mine = pull[:, None] * own - apart
        of_shared = pull[:, None] * own + apart + self.sparsity * share * shared.sign()
        squares = (of_mine.square().sum(1) + of_shared.square().sum(1)) / times  # an item's examples share its square
        square = _sum(squares, client, count) + of_weight.square().sum(1) + of_bias.square()
        factor = single.clip_factor(square.sqrt(), recipe.clip)
        step = (recipe.item_rate * factor)[client][:, None]
        tables[0].index_copy_(0, rows[0], mine - step * of_mine)
        tables[1].index_copy_(0, rows[1], shared - step * of_shared)
        weight.sub_(of_weight * (recipe.rate * factor)[:, None])
        bias.sub_((of_bias * recipe.rate * factor)[:, None])
        return losses

    def aggregate(
        self, state: FedRAPState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedRAPState, Metrics]:
        """The plain mean of the shared tables; and the share of its entries that are about zero."""
        mean, loss, count = WeightedMean(), 0.0, 0
        for reply in replies:
            mean.add(reply.packet.tensors)
            loss, count = loss + float(reply.packet.scalars["loss"]), count + 1
        common = mean.mean()["items"]
        return FedRAPState(common), {
            "train/loss": loss / count,
            "sparsity": float((common.abs() <= 1e-4).float().mean()),
        }

    def global_model(self, state: FedRAPState) -> Tree:
        """The shared table."""
        return {"items": state.common}

    def configure_evaluation(
        self, state: FedRAPState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the newest shared table."""
        packet = Packet({"items": state.common})
        return ((client, packet) for client in clients)

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """By both tables."""
        common = packet.tensors["items"]
        own = {n: client.memory.get(n, t) for n, t in _fresh(common.shape, client.seed).items()}
        return (own["personal"] + common) @ own["weight"] + own["bias"]

    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """The same for many clients."""
        common = cohort.packets[0].tensors["items"]
        own = {n: cohort.read(n, t) for n, t in _fresh(common.shape, cohort.seed).items()}
        return matmul(own["personal"].add_(common), own["weight"][:, :, None])[:, :, 0] + own["bias"]


def _fresh(shape: Sequence[int], seed: int) -> Tree:
    """What all users begin with."""
    personal = torch.randn(shape[0], shape[1], generator=keyed_generator(seed, "personal"))
    return {"personal": personal, **LinearHead().head(shape[1], keyed_generator(seed, "head"))}


def _sum(values: Tensor, client: Tensor, count: int) -> Tensor:
    return torch.zeros(count).index_add_(0, client, values)
