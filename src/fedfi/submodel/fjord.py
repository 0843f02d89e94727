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
- A level of `capacities` with a share of 0 is a width that larger clients train, too.
- `weights = "uniform"` is an option beyond the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor
from torch.nn import functional

from fedfi.channels import Units, Wiring
from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.checkpoint import UNSAVED
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
from fedfi.submodel.sizing import check_cuts, wiring_at, wiring_of
from fedfi.submodel.sliced import receive


@dataclass(frozen=True)
class FjORDState:
    """The server's state.

    Attributes:
        model: The whole network and the batch norms of each level, by label (see `nested`).
        plain: Names and shapes of the whole network's own parameters.
        constants: Names of its frozen parameters and buffers.
        norms: Which parameters and buffers are of batch norms.
        wiring: The network's channel groups.
        widths: The width at each level.
        assignment: Seed of who is at which level.
    """

    model: Model
    plain: VectorLayout
    constants: list[str]
    norms: list[str]
    wiring: Wiring = field(metadata=UNSAVED)
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

    def mixes_networks(self) -> bool:
        """Every width has batch norms of its own, whose statistics are of that width alone."""
        return False

    def init(self, task: Task, rng: torch.Generator) -> FjORDState:
        """A freshly initialised model, whose batch norms each level has of its own."""
        bench = fresh_workbench(task, rng)
        wiring, names = wiring_of(task, bench.module), batch_norm_names(bench.module)
        wide = check_cuts(wiring, bench.module, sorted({1.0, *self.capacities}, reverse=True), self.ratio)
        parameters, constants = _labelled(bench.parameters(), wiring, wide, names), bench.constants
        order = labels(bench.layout.names, map(level_name, wide), names)
        if len(set(order)) < len(order):
            twice = next(name for i, name in enumerate(order) if name in order[:i])
            raise InputError(f"a parameter is called {twice!r}, as fjord calls a level's batch norm; rename its module")
        layout = VectorLayout(order, [list(parameters[name].shape) for name in order], [])
        buffers = labels(bench.buffers(), map(level_name, wide), names)
        kept = {n: t.clone() for n, t in _labelled(constants, wiring, wide, names).items()}
        model = Model(layout.join(parameters), kept, buffers, layout)
        seed = int(torch.randint(2**31, (), generator=rng))
        return FjORDState(model, bench.layout, list(constants), sorted(names), wiring, wide, seed)

    def configure(
        self, state: FjORDState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Each sampled client gets the network of its level, and the batch norms of the smaller ones."""
        sampled, assigned = self.sample(clients, rng), self.assigned(clients, state.assignment, round)
        return ((client, _nest(state, assigned[client])) for client in sampled)

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
        return _network(state, 1.0)

    def levels(self, state: FjORDState) -> Iterable[tuple[str, Packet]]:
        """The network of each level with a share of the clients."""
        return ((level_name(ratio), self.level(state, ratio)) for ratio in held_levels(self.capacities))

    def level(self, state: FjORDState, ratio: float) -> Packet:
        """The network of one level, whatever its share."""
        return _submodel(state, ratio)

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


@dataclass(frozen=True)
class Inside:
    """A client's network with the smaller ones in it, on a workbench.

    Attributes:
        bench: The workbench.
        nested: Its module.
        names: Label -> the module's own name.
        order: Labels of the parameters, in the order in which they travel.
    """

    bench: Workbench
    nested: Nested
    names: dict[str, str]
    order: list[str]

    @staticmethod
    def of(packet: Packet, benches: Benches) -> Inside:
        """Loads what `_nest` packed."""
        whole = benches.whole
        wiring, norms = wiring_at(benches), batch_norm_names(whole.module)
        levels = sorted(packet.blobs, key=float, reverse=True)
        units = [wiring.unpack(packet.blobs[level]) for level in levels]
        counts = tuple(int(kept.sum()) for each in units for kept in each.values())
        bench = benches.smaller(("nested", *counts), lambda module: Nested.of(module, wiring, units))
        nested = bench.module
        assert isinstance(nested, Nested)  # made above
        names = {found: name for name, found in nested.labels(levels).items()}
        inside = Inside(bench, nested, names, labels(whole.layout.names, levels, norms))
        own = bench.parameters()
        pieces = packet.tensors["kept"].split([own[names[n]].numel() for n in inside.order])
        shaped = {names[n]: t.view(own[names[n]].shape) for n, t in zip(inside.order, pieces, strict=True)}
        bench.load(shaped | {names[n]: t for n, t in unmarked(packet.tensors).items()})
        return inside

    def packed(self, update: Tensor) -> Tree:
        """What travels back: an update of the workbench's vector, and the buffers."""
        tree = self.bench.layout.split(update)
        buffers = self.bench.buffers()
        found = {n: buffers[name].clone() for n, name in self.names.items() if name in buffers}
        return {"update": torch.cat([tree[self.names[n]].reshape(-1) for n in self.order])} | marked(found)


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 times the mean Kullback-Leibler divergence of softened logits `[batch, classes]` from the teacher's.

    Raises:
        InputError: If the outputs are no logits.
    """
    if student.ndim != 2:
        raise InputError(
            f"distillation = true needs logits [batch, classes], but the outputs have shape {tuple(student.shape)}"
        )
    logs, goal = (functional.log_softmax(each / temperature, 1) for each in (student, teacher))
    return functional.kl_div(logs, goal, reduction="batchmean", log_target=True) * temperature**2


def _up_to(state: FjORDState, ratio: float) -> list[float]:
    """The levels inside a network of this level, its own first."""
    return [level for level in state.widths if level <= ratio]


def _labelled(tree: Tree, wiring: Wiring, wide: dict[float, float], norms: set[str]) -> Tree:
    """A whole network's tensors by label, those of batch norms once a level."""
    found = {name: tensor for name, tensor in tree.items() if name not in norms}
    for ratio, width in wide.items():
        small = wiring.take({n: t for n, t in tree.items() if n in norms}, wiring.prefix(width))
        found |= {label(name, level_name(ratio), norms): tensor for name, tensor in small.items()}
    return found


def _network(state: FjORDState, ratio: float) -> Tree:
    """A level's network by the task's own names."""
    level, norms = level_name(ratio), set(state.norms)
    tree = state.model.tree()
    names = [*state.plain.names, *(n for n in state.constants)]
    shared = state.wiring.take({n: tree[n] for n in names if n not in norms}, _units(state, ratio))
    return {n: tree[label(n, level, norms)] if n in norms else shared[n] for n in names}


def _units(state: FjORDState, ratio: float) -> Units:
    return state.wiring.prefix(state.widths[ratio])


def _submodel(state: FjORDState, ratio: float) -> Packet:
    """A level's network alone, as `sliced.receive` takes it."""
    tree = _network(state, ratio)
    constants = {n: tree[n] for n in state.constants}
    scalars = {"ratio": ratio, "width": state.widths[ratio]}
    return Packet(
        {"kept": state.plain.join(tree)} | marked(constants),
        scalars,
        {"units": state.wiring.pack(_units(state, ratio))},
    )


def _nest(state: FjORDState, ratio: float) -> Packet:
    """What a client at this level trains: parameters in one vector, the rest by label."""
    norms, levels = set(state.norms), _up_to(state, ratio)
    networks = {level_name(level): _network(state, level) for level in levels}
    every = {label(n, level, norms): t for level in reversed(networks) for n, t in networks[level].items()}
    order = labels(state.plain.names, networks, norms)
    constants = {name: every[name] for name in labels(state.constants, networks, norms)}
    kept = torch.cat([every[name].reshape(-1) for name in order])
    blobs = {level_name(level): state.wiring.pack(_units(state, level)) for level in levels}
    return Packet({"kept": kept} | marked(constants), {"ratio": ratio, "width": state.widths[ratio]}, blobs)


def _parts(state: FjORDState, ratio: float) -> tuple[Tensor, Tree]:
    """The mask `[size]` of what a client at this level holds, and that of each buffer."""
    units, norms = _units(state, ratio), set(state.norms)
    inside = {label(name, level_name(level), norms) for level in _up_to(state, ratio) for name in norms}
    every = {label(name, level_name(level), norms) for level in state.widths for name in norms}

    def mask(name: str, shape: Sequence[int]) -> Tensor:
        return torch.full(tuple(shape), name in inside) if name in every else state.wiring.mask(name, units)

    layout, constants = state.model.layout, state.model.constants
    entries = [mask(n, shape).reshape(-1) for n, shape in zip(layout.names, layout.shapes, strict=True)]
    return torch.cat(entries), {n: mask(n, constants[n].shape) for n in state.model.buffers}
