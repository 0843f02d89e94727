"""FedRKG: Lim et al., Federated Recommendation with Regularized Knowledge Guidance, arXiv:2511.12959.

Users train item tables of their own for many rounds. Every T_int rounds the server averages the tables; the mean is
not written over a user's table but softly drawn in, item by item through a gate.

| paper | here |
|---|---|
| item embeddings Q_u, user vector and scoring function, private | memory `items`, `head/...` |
| T_int, rounds from one guidance to the next | `interval` |
| lambda; regularised target (Q_u + lambda Q) / (1 + lambda) | `strength`, or `beta` = 1 / (1 + lambda) |
| adaptive guidance: gate over [q, Q, q - Q], anchor 2 g Q | `gate`, `fedfi.recsys.gate` |
| inner loop of the truncated bi-level problem | `gate_epochs`, `gate_rate`; table and head frozen |
| E epochs, batch 256, clip 1.0 | the task's `[train]` table |
| item step size, lr * items * 80 in the code | `item_rate` |
| binary cross-entropy; others in `fedfi.recsys.objective` | `loss` |
| FedMF, FedNCF, PFedRec as backbones | `backbone` |
| local differential privacy: clip C, noise N(0, (sigma C)^2) | `clip`, `noise`, `delta`, `source` |

Parameters a user stores, with the backbone mf: (m + 4) d + 1, that is a table m d, a user vector d, a gate 3 d + 1; at
guidance the mean besides: (2 m + 4) d + 1. Traffic is 1 / T_int of a method that exchanges tables each round.

The two ends of guidance are methods of their own: without a gate, `beta = 0` is full replacement and `beta = 1` local
training alone (as no `interval` is, in Python).

Deviations:

- **Defaults.** The published settings (preset `as-published`: T_int = 100, beta = 0.99, item_rate = 80, gate_rate =
  1e-4) were tuned with negatives that avoid held-out items. Without that leak they do not beat a popularity ranking.
  The defaults exchange more often and draw more strongly; they led on validation items of three data sets. Their step
  of the table needs exchanges as frequent: at longer intervals tables part, and the preset `sparing`, second on those
  items with a third of the traffic, has smaller steps; see docs/recommendation.md.
- **Partial participation.** In the published code a user that was never sampled has no entry and evaluation fails.
  Here it ranks by the newest mean with the head that all begin with; a user that was away at a guidance round is guided
  by the newest mean when it next takes part.
- **Negatives** are drawn independently, so one may be drawn twice; a batch holds a positive beside its own negatives.
  The gate has draws of its own, where the published code gives it those of the round's training.
- **Schedule.** The first mean is made after T_int rounds; in the published code after T_int + 1.
- **Inner loop.** It always makes its `gate_epochs` passes, where the published code ends it when the loss changes by
  less than a ten-thousandth; the gate's gradient is clipped by its own norm, where that code counts the gradients of
  the frozen parameters too, so that a large table would hold the gate still.
- **User vector.** It begins uniform in +-1 / sqrt(d), the same for all users, and is multiplied with an item's row; the
  published code concatenates the two, which cannot change a ranking.
- **Privacy.** The update is taken against the newest mean, which then is sent along with the request, so that the
  server knows what it adds to; losses are not sent; composition over the releases of the client that made most of
  them is exact (`fedfi.recsys.privacy`), and is reported as `privacy/epsilon`.
- **Warm-up.** The paper has none (`warmup = 0`). Without it tables begin at random and far from each other's sense of
  an item, so that their first means say little; with it the mean is written over all tables after each of the first
  rounds, and guidance begins from tables that agree.
- **PFedRec as a backbone** is its linear head; its second pass over a batch (items after the head) is `alternate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Self, final

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, ClientId
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.task import Task
from fedfi.privacy.noise import Spread
from fedfi.recsys.backbones import BackboneName
from fedfi.recsys.exchange import Exchange, ExchangeState, Plan
from fedfi.recsys.gate import guided, part_of, passes, train_gate, train_gates
from fedfi.recsys.portrait import USERS, portrait
from fedfi.recsys.privacy import Release, Source
from fedfi.recsys.recipe import Recipe, ratings_of, recipe_of
from fedfi.recsys.recommender import ItemRate
from fedfi.recsys.replacement import replace_many

_DEFAULT_BETA = 0.5
_DEFAULT_DELTA = 1e-5


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedRKG(Exchange):
    """Long local training of private item tables, and guidance by their mean now and then."""

    item_rate: ItemRate = 80.0
    backbone: Annotated[BackboneName, Field(description="scoring function")] = "mf"
    interval: Annotated[int | None, Field(ge=1, description="T_int, rounds between guidances")] = 5
    beta: Annotated[float | None, Field(ge=0, le=1, description="weight of the own table at guidance; default 0.5")] = (
        None
    )
    strength: Annotated[float | None, Field(ge=0, description="lambda; instead of beta = 1 / (1 + lambda)")] = None
    warmup: Annotated[int, Field(ge=0, description="rounds of replacement at the beginning, before guidance")] = 0
    gate: Annotated[bool, Field(description="adaptive guidance; else the anchor is the mean itself")] = True
    gate_rate: Annotated[float, Field(gt=0, description="step size of the gate")] = 0.1
    gate_epochs: Annotated[int, Field(ge=0, description="inner passes over the client's data")] = 5
    alternate: Annotated[bool, Field(description="each batch moves the head first, then the items")] = False
    clip: Annotated[float | None, Field(gt=0, description="largest norm C of a sent update; none = not private")] = None
    noise: Annotated[float, Field(ge=0, description="noise multiplier sigma of a sent update")] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1, description="delta of the privacy that is reported")] = _DEFAULT_DELTA
    source: Annotated[Source, Field(description="where noise comes from: keyed can be repeated and undone")] = "keyed"

    refused: ClassVar[Mapping[str, str]] = {
        "private": "it makes its tables private by itself (nearest valid: its own options clip and noise)"
    }
    instead: ClassVar[Sequence[tuple[str, ...]]] = (("beta", "strength"),)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-published": {"interval": 100, "beta": 0.99, "item_rate": 80.0, "gate_rate": 1e-4},
        "sparing": {"interval": 20, "strength": 3.0, "item_rate": 8.0},
    }

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.beta is not None and self.strength is not None:
            raise ValueError(f"give beta or strength, not both (got beta = {self.beta}, strength = {self.strength})")
        if self.noise and self.clip is None:
            raise ValueError(f"noise = {self.noise} needs clip, the norm that it is measured in")
        if self.clip is None and self.source != "keyed":
            raise ValueError(f"source = {self.source!r} needs clip and noise: without them nothing is made private")
        if self.clip is None and self.delta != _DEFAULT_DELTA:
            raise ValueError(f"delta = {self.delta:g} needs clip and noise: without them no privacy is reported")
        return self

    @property
    def own_weight(self) -> float:
        """Weight of a user's own table at guidance."""
        if self.strength is not None:
            return 1.0 / (1.0 + self.strength)
        return _DEFAULT_BETA if self.beta is None else self.beta

    def plan(self) -> Plan:
        """Private heads and tables, exchanged every `interval` rounds."""
        release = None if self.clip is None else Release(self.clip, self.noise, self.delta, self.source)
        return Plan(self.backbone, self.interval, self.alternate, release=release, warmup=self.warmup)

    def spread(self, clients: int) -> Spread:
        """That of the noise on an entry of an update, whose norm is clipped."""
        return Spread.gaussian(self.noise * (self.clip or 0.0), self.clip)

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """That options of the gate are given, and there is none."""
        named = ("gate_epochs", "gate_rate")
        usual = [{each.name: each.default for each in fields(self) if each.name in named}, *self.presets.values()]
        idle = [n for n in named if all(getattr(self, n) != known.get(n) for known in usual)]
        return [f"{', '.join(idle)}: without effect with gate = false"] if idle and not self.gate else []

    def take_in(self, client: Client, mean: Tensor, table: Tensor, head: Tree) -> Tensor:
        """Guidance of one client, whose gate is trained first and kept; until the warm-up is over, replacement."""
        if client.round <= self.warmup:
            return mean
        gate = None
        if self.gate:
            recipe = self._inner(recipe_of(client.task, client.round, self.item_rate, loss=self.loss))
            gate = client.memory.get("gate", torch.zeros(3 * table.shape[1] + 1))
            scoring = self.plan().scoring
            gate = train_gate(client, scoring, table, mean, head, gate, self.own_weight, self.gate_rate, recipe)
            client.memory["gate"] = gate
        return guided(table, mean, self.own_weight, gate)

    def take_in_many(self, cohort: Cohort, who: Tensor, mean: Tensor, tables: Tensor, head: Tree) -> None:
        """Guidance of many clients; until the warm-up is over, replacement."""
        if cohort.round <= self.warmup:
            replace_many(cohort.rows[who], mean, tables)
            return
        part, gates = part_of(cohort, who), None
        if self.gate:
            recipe = self._inner(recipe_of(cohort.task, cohort.round, self.item_rate, loss=self.loss))
            heads = {n: t[who] for n, t in head.items()}
            before = part.read("gate", torch.zeros(3 * mean.shape[1] + 1))
            scoring = self.plan().scoring
            gates = train_gates(part, scoring, tables, mean, heads, before, self.own_weight, self.gate_rate, recipe)
            part.write("gate", gates)
        for i, row in enumerate(part.rows.tolist()):  # one table at a time stays in the caches
            tables[row] = guided(tables[row], mean, self.own_weight, None if gates is None else gates[i])

    def portrayed(self, state: ExchangeState, round: int, clients: Sequence[ClientId]) -> Sequence[ClientId]:
        """The first users that a guidance would reach in this round."""
        if round <= self.warmup:
            return []
        return [c for c in clients if state.received.get(c, state.version) < state.version][:USERS]

    def portrait(
        self, task: Task, state: ExchangeState, before: Mapping[str, Tree], after: Mapping[str, Tree]
    ) -> Mapping[str, Packet]:
        """How far gates open, and one user's items before and after."""
        return portrait(ratings_of(task), state.mean["items"], self.own_weight, before, after)

    def _inner(self, recipe: Recipe) -> Recipe:
        return passes(recipe, self.gate_epochs)
