"""FjORD: Horvath, Laskaridis, Almeida, Leontiadis, Venieris, Lane, FjORD: Fair and Accurate Federated Learning under
Heterogeneous Targets with Ordered Dropout, NeurIPS 2021, arXiv:2102.13451.

| paper | here |
|---|---|
| p of the set P, the share of each layer's first channels | a level of `capacities` |
| p_max of a client | the client's level |
| p drawn uniformly of those up to p_max, anew each step | `_gradient`; `client.rng("width")` |
| ordered dropout, the network F_p inside F | `nested.Nested`, `Wiring.prefix` |
| batch normalisation of each p | `nested.Nested.norms` |
| self-distillation, weight alpha and temperature T | `distillation`, `distillation_weight`, `temperature` |
| w_p minus w_p' as the mean over clients with p_max >= p, by examples | `holders.HolderMean`, `weights = "examples"` |

With distillation a step minimises the sum of the loss of F_pmax and of (1 - alpha) times the loss of F_p plus alpha T^2
times the Kullback-Leibler divergence of F_p's softened outputs from F_pmax's, which are held fixed; where p_max itself
is drawn only the first is left. The defaults alpha = 1 and T = 1 are those of the authors' own baseline
(github.com/adap/flower, baselines/fjord), which takes the teacher's probabilities for targets; that there is a weight
and a temperature is from the paper, their values there were not at hand.

Deviations:

- A batch norm has parameters, too, for each p, as slimmable networks have (Yu et al., ICLR 2019); the authors' baseline
  shares scale and shift and keeps statistics apart.
- A client that happens not to draw some p in a round counts among the holders of that p's batch norms all the same.
- Where `ratio = "params"`, p is the width whose parameters fit a level's fraction.
- The network that a user deploys is the whole one. Its batch norms are those of level 1: without clients at that level
  they stay as they were made.
- Which channels may be cut is found out from the network: inputs and classes stay whole, channels that a residual
  connection ties are cut together, and a layer keeps ceil(p n) of its n units.
- `weights = "uniform"` is an option beyond the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor
from torch.nn import functional

from fedfi.channels import Units, Wiring
from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.evaluation import evaluate_workbench
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.task import Task
from fedfi.federation.training import Gradient, mean_loss_gradient, train_locally
from fedfi.federation.workbench import Benches, VectorLayout, Workbench, fresh_workbench
from fedfi.submodel.capacities import held_levels, level_name
from fedfi.submodel.holders import HolderMean
from fedfi.submodel.leveled import Leveled
from fedfi.submodel.model import Model, marked, unmarked
from fedfi.submodel.nested import Nested, batch_norm_names, label, labels
from fedfi.submodel.sizing import widths, wiring_of
from fedfi.submodel.sliced import receive

_WHOLE = "1"


@dataclass(frozen=True)
class FjORDState:
    """The server's state.

    Attributes:
        model: The whole network and the batch norms of each level, by label (see `nested`).
        plain: Names and shapes of the whole network's own parameters.
        norms: Which parameters and buffers are of batch norms.
        wiring: The network's channel groups.
        widths: The width at each level.
        assignment: Seed of who is at which level.
    """

    model: Model
    plain: VectorLayout
    norms: list[str]
    wiring: Wiring
    widths: dict[float, float]
    assignment: int


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FjORD(Leveled[FjORDState]):
    """Nested networks of each layer's first channels, of all widths up to the client's own."""

    distillation: Annotated[bool, Field(description="teach the drawn network by the client's largest one")] = False
    distillation_weight: Annotated[
        float, Field(ge=0, le=1, description="share alpha of the teacher in the drawn network's loss")
    ] = 1.0
    temperature: Annotated[float, Field(gt=0, description="temperature T of the teacher's probabilities")] = 1.0
    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"
    server_learning_rate: Annotated[float, Field(gt=0, description="factor of the mean update")] = 1.0

    def init(self, task: Task, rng: torch.Generator) -> FjORDState:
        """A freshly initialised model, whose batch norms each level has of its own."""
        bench = fresh_workbench(task, rng)
        wiring, names = wiring_of(task, bench.module), batch_norm_names(bench.module)
        wide = widths(self.ratio, sorted({1.0, *self.capacities}, reverse=True), wiring)
        parameters, constants = _labelled(bench.parameters(), wiring, wide, names), bench.constants
        order = labels(bench.layout.names, map(level_name, wide), names)
        layout = VectorLayout(order, [list(parameters[name].shape) for name in order], [])
        buffers = labels(bench.buffers(), map(level_name, wide), names)
        kept = {n: t.clone() for n, t in _labelled(constants, wiring, wide, names).items()}
        model = Model(layout.join(parameters), kept, buffers, layout)
        seed = int(torch.randint(2**31, (), generator=rng))
        return FjORDState(model, bench.layout, sorted(names), wiring, wide, seed)

    def configure(
        self, state: FjORDState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Each sampled client gets the network of its level, and the batch norms of the smaller ones."""
        sampled, assigned = self.sample(clients, rng), self.assigned(clients, state.assignment, round)
        return ((client, self._nest(state, assigned[client])) for client in sampled)

    def reply_layout(self, state: FjORDState, packet: Packet) -> Layout:
        """The update of what was sent, the buffers, the loss and the number of examples."""
        buffers = {n: t for n, t in unmarked(packet.tensors).items() if n in state.model.buffers}
        base = Layout.like({"update": packet.tensors["kept"]} | marked(buffers), loss=float, examples=int)
        return replace(base, least={"examples": 1})

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains a network of a random width each step."""
        inside = Inside.of(packet, client.benches)
        start = inside.bench.vector.detach().clone()
        owner = client.on(inside.bench)
        trained = train_locally(owner, gradient=self._gradient(owner, inside.nested))
        back = inside.packed(start - inside.bench.vector.detach())
        return Packet(back, {"loss": trained.loss, "examples": trained.examples})

    def aggregate(
        self, state: FjORDState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FjORDState, Metrics]:
        """The mean update of each entry over the clients whose network has it."""
        mean, loss = HolderMean(state.model), WeightedMean()
        held: dict[float, tuple[Tensor, Tree]] = {}
        for reply in replies:
            tensors, scalars = reply.packet.tensors, reply.packet.scalars
            examples, ratio = float(scalars["examples"]), float(reply.sent.scalars["ratio"])
            if ratio not in held:
                held[ratio] = _parts(state, ratio)
            mask, parts = held[ratio]
            weight = examples if self.weights == "examples" else 1.0
            mean.add(mask, tensors["update"], unmarked(tensors), weight=weight, parts=parts)
            loss.add_scalar("loss", scalars["loss"], examples)
        return replace(state, model=mean.next(self.server_learning_rate)), {"train/loss": loss.scalar("loss")}

    def global_model(self, state: FjORDState) -> Tree:
        """The whole network."""
        return _network(state, 1.0, state.wiring.full)

    def levels(self, state: FjORDState) -> Iterable[tuple[str, Packet]]:
        """The network of each level."""
        for ratio in held_levels(self.capacities):
            yield level_name(ratio), _submodel(state, ratio)

    def place(self, packet: Packet, benches: Benches) -> Workbench:
        """A submodel is a smaller network."""
        return receive(packet, benches)

    def configure_evaluation(
        self, state: FjORDState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Every client gets the network of its level."""
        assigned = self.assigned(clients, state.assignment, None)
        return ((client, _submodel(state, assigned[client])) for client in clients)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges the client's network on its own test examples (matched local)."""
        return evaluate_workbench(client.on(receive(packet, client.benches)))

    def _nest(self, state: FjORDState, ratio: float) -> Packet:
        """What a client at this level trains: parameters by label in one vector, the rest by label."""
        levels = _up_to(state, ratio)
        units = state.wiring.prefix(state.widths[ratio])
        norms, tree = set(state.norms), state.model.layout.split(state.model.vector)
        own = list(map(level_name, levels))
        shared = state.wiring.take({n: t for n, t in state.model.tree().items() if ":" not in n}, units)
        every = state.model.tree() | shared
        order = labels(state.plain.names, own, norms)
        constants = {n: every[n] for n in state.model.constants if n in shared or n.partition(":")[0] in own}
        blobs = {level_name(r): state.wiring.pack(state.wiring.prefix(state.widths[r])) for r in levels}
        kept = torch.cat([every[name].reshape(-1) for name in order if name in tree])
        return Packet({"kept": kept} | marked(constants), {"ratio": ratio, "width": state.widths[ratio]}, blobs)

    def _gradient(self, client: Client, nested: Nested) -> Gradient:
        """The gradient of a step, at a width drawn for it."""
        rng, plain, loss = client.rng("width"), mean_loss_gradient(client), client.task.loss
        count = len(nested.norms) + 1

        def run(level: int, inputs: Tensor) -> Tensor:
            nested.level = level
            outputs: Tensor = nested(inputs)
            nested.level = 0
            return outputs

        def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
            drawn = int(torch.randint(count, (), generator=rng))
            if not self.distillation or drawn == 0:
                nested.level = drawn
                value = plain(inputs, targets)
                nested.level = 0
                return value
            teacher, student = run(0, inputs), run(drawn, inputs)
            soft = divergence(student, teacher.detach(), self.temperature)
            hard = loss(student, targets).mean()
            taught = (1 - self.distillation_weight) * hard + self.distillation_weight * soft
            total = loss(teacher, targets).mean() + taught
            total.backward()
            return total.detach()

        return gradient
