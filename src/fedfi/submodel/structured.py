"""Submodels channel by channel: what the methods share that give a client a smaller dense network.

A method says which channels a client of some width gets in some round. Everything else is here: who is at which level
and how wide that is, what travels, local training with HeteroFL's three devices, the mean over holders, and the three
evaluations. Clients start from the server's values, and each entry becomes the mean over the clients that held it,
which equals HeteroFL's mean of weights up to rounding; an entry that nobody held stays bit-identical.

HeteroFL's devices (Diao, Ding, Tarokh, ICLR 2021), each a switch of every method here, as FedRolex has them too:

- `scaler`: in training, the output of every layer whose channels are cut is divided by the width, so that its size is
  that of the whole network's. (Before a norm this changes nothing but the share of its epsilon.) The division stays
  with a submodel that is judged or exported, folded into its parameters, so that it computes what was trained; the
  whole model has none. The authors judge the whole model only. The divisor is the nominal width, as theirs, also where
  rounding up keeps more of a layer, such as one of four heads at a sixteenth.
- `masked_loss`: logits of classes of which a client has no example are set to zero in its training loss.
  Clients judge their submodel without it; the authors mask absent classes in their local test, too.
- `label_rows`: parameters of a class's logit are averaged over those holders alone that have examples of the class;
  a client tells the server which classes it has, a bit each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from fedfi.channels import Units, Wiring
from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.checkpoint import UNSAVED
from fedfi.federation.client import Client
from fedfi.federation.evaluation import evaluate_workbench
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import keyed_generator, keyed_global_rng
from fedfi.federation.task import Task
from fedfi.federation.training import Gradient, mean_loss_gradient, train_locally
from fedfi.federation.workbench import Benches, Workbench, fresh_workbench
from fedfi.submodel.capacities import held_levels, level_name
from fedfi.submodel.holders import HolderMean
from fedfi.submodel.leveled import Leveled
from fedfi.submodel.model import Model, unmarked
from fedfi.submodel.scaling import check_reach, check_scaler, fold, scaled
from fedfi.submodel.sizing import check_cuts, wiring_at, wiring_of
from fedfi.submodel.sliced import parts, receive, returned, send, update_of

Scaler = Annotated[bool, Field(description="divide the outputs of cut layers by the width, in training")]
MaskedLoss = Annotated[bool, Field(description="zero the logits of classes that a client does not have")]
LabelRows = Annotated[bool, Field(description="average a class's rows over the clients that have examples of it")]


@dataclass(frozen=True)
class StructuredState:
    """The server's state.

    Attributes:
        model: The global model.
        wiring: Its channel groups.
        widths: The width of the network at each level.
        assignment: Seed of who is at which level, and of what else is drawn once.
        round: Number of finished rounds.
    """

    model: Model
    wiring: Wiring = field(metadata=UNSAVED)
    widths: dict[float, float]
    assignment: int
    round: int = 0


@runtime_checkable
class Broadcasts(Protocol):
    """A method that moves entries which nobody held."""

    def broadcast(self, state: StructuredState, model: Model, count: Tensor) -> Model:
        """The model after the round, given the one that the mean made and the number of holders of each entry."""
        ...


@validated(frozen=True, kw_only=True, config=CONFIG)
class Structured(Leveled[StructuredState]):
    """Each sampled client trains a network of some of the channels; each entry is averaged over its holders."""

    server_learning_rate: Annotated[float, Field(gt=0, description="factor of the mean update")] = 1.0
    scaler: Scaler = False
    masked_loss: MaskedLoss = False
    label_rows: LabelRows = False

    @abstractmethod
    def units(self, wiring: Wiring, width: float, round: int, rng: torch.Generator) -> Units:
        """The channels that a client of this width gets in a round."""

    def init(self, task: Task, rng: torch.Generator) -> StructuredState:
        """A freshly initialised model, and its channel groups."""
        bench = fresh_workbench(task, rng)
        wiring = wiring_of(task, bench.module)
        if self.label_rows and not wiring.outputs:
            raise InputError(
                f"label_rows = true needs a network whose logits are the outputs of a layer, which"
                f" {type(bench.module).__name__} does not show; set label_rows = false"
            )
        if self.label_rows:
            padded(torch.ones(task.data.spec.classes, dtype=torch.bool), len(wiring.outputs[0].positions))
        if self.masked_loss:
            check_logits(bench.module, task)
            bench.reset()
        if self.scaler:
            check_reach(wiring, bench.module)
        wide = check_cuts(wiring, bench.module, self.capacities, self.ratio)
        if self.scaler:
            check_scaler(wiring, bench.module, min(wide.values()))
        return StructuredState(Model.of(bench), wiring, wide, int(torch.randint(2**31, (), generator=rng)))

    def configure(
        self, state: StructuredState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Each sampled client gets the network of its capacity."""
        return self._submodels(state, self.sample(clients, rng), self.assigned(clients, state.assignment, round), rng)

    def reply_layout(self, state: StructuredState, packet: Packet) -> Layout:
        """The update of what was sent, the loss and the number of examples; with `label_rows` the client's classes."""
        base = returned(state.model, packet)
        tensors = dict(base.tensors)
        if self.label_rows:
            tensors["classes"] = ((len(state.wiring.outputs[0].positions),), torch.bool)
        return Layout(tensors, {"loss": float, "examples": int}, least={"examples": 1})

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains the small network and returns start minus end."""
        bench = receive(packet, client.benches)
        start = bench.vector.detach().clone()
        with ExitStack() as hooks:
            if self.scaler:
                width = float(packet.scalars["width"])
                hooks.enter_context(scaled(bench.module, wiring_at(client.benches), width))
            trained = train_locally(client.on(bench), gradient=self._gradient(client.on(bench)))
        back = update_of(bench, start)
        if self.label_rows:
            back["classes"] = padded(classes_of(client), len(wiring_at(client.benches).outputs[0].positions))
        return Packet(back, {"loss": trained.loss, "examples": trained.examples})

    def aggregate(
        self, state: StructuredState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[StructuredState, Metrics]:
        """The mean update of each entry over the clients that held it."""
        mean, loss = HolderMean(state.model), WeightedMean()
        for reply in replies:
            tensors, scalars = reply.packet.tensors, reply.packet.scalars
            mask, buffers = parts(state.wiring, state.model, reply.sent)
            update = tensors["update"]
            if self.label_rows:
                speaks = own_rows(state.wiring, state.model, tensors["classes"])
                mask, update = mask & speaks, update[speaks[mask]]
            mean.add(mask, update, unmarked(tensors), parts=buffers)
            loss.add_scalar("loss", scalars["loss"], float(scalars["examples"]))
        model = mean.next(self.server_learning_rate)
        if isinstance(self, Broadcasts):
            model = self.broadcast(state, model, mean.count)
        return replace(state, model=model, round=state.round + 1), {"train/loss": loss.scalar("loss")}

    def global_model(self, state: StructuredState) -> Tree:
        """The full model."""
        return state.model.tree()

    def levels(self, state: StructuredState) -> Iterable[tuple[str, Packet]]:
        """The network of each level with a share of the clients."""
        return ((level_name(ratio), self.level(state, ratio)) for ratio in held_levels(self.capacities))

    def level(self, state: StructuredState, ratio: float) -> Packet:
        """The network of one level, as a client would get it next, whatever its share."""
        return self._submodel(state, ratio, keyed_generator(state.assignment, "level", level_name(ratio)))

    def place(self, packet: Packet, benches: Benches) -> Workbench:
        """A submodel is a smaller network, and computes what it was trained to."""
        bench = receive(packet, benches)
        if self.scaler:
            fold(bench.module, wiring_at(benches), float(packet.scalars["width"]))
        return bench

    def configure_evaluation(
        self, state: StructuredState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Every client gets a network of its capacity."""
        return self._submodels(state, clients, self.assigned(clients, state.assignment, None), rng)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges the client's network on its own test examples (matched local)."""
        return evaluate_workbench(client.on(self.place(packet, client.benches)), renew=self.mixes_networks())

    def _submodels(
        self,
        state: StructuredState,
        clients: Sequence[ClientId],
        levels: Mapping[ClientId, float],
        rng: torch.Generator,
    ) -> Iterator[tuple[ClientId, Packet]]:
        for client in clients:
            yield client, self._submodel(state, levels[client], rng)

    def _submodel(self, state: StructuredState, ratio: float, rng: torch.Generator) -> Packet:
        width = state.widths[ratio]
        units = self.units(state.wiring, width, state.round, rng)
        return send(state.model, state.wiring, units, {"ratio": ratio, "width": width})

    def _gradient(self, client: Client) -> Gradient | None:
        return masked_loss_gradient(client) if self.masked_loss else None


def masked_loss_gradient(client: Client) -> Gradient:
    """The gradient of the mean loss with the logits of absent classes set to zero."""
    classes = classes_of(client).to(client.device)

    def masked(logits: Tensor) -> Tensor:
        return logits * padded(classes, logits.shape[1]).reshape(-1, *[1] * (logits.ndim - 2))

    return mean_loss_gradient(client, masked)


def check_logits(module: nn.Module, task: Task) -> None:
    """Checks that a network makes logits that can be masked, ``[batch, classes, ...]``.

    Raises:
        InputError: Saying what it makes.
    """
    classes = task.data.spec.classes
    with keyed_global_rng(0, "trial"), torch.no_grad():
        made = module.eval()(task.data.spec.example())
    if not isinstance(made, Tensor) or made.ndim < 2 or made.shape[1] < classes:
        got = list(made.shape) if isinstance(made, Tensor) else f"a {type(made).__name__}"
        raise InputError(
            f"masked_loss = true needs logits [batch, {classes}], but {type(module).__name__} makes {got};"
            f" set masked_loss = false"
        )


def classes_of(client: Client) -> Tensor:
    """Which classes a client has training examples of `[classes]`."""
    return client.data.train.class_counts() > 0


def padded(classes: Tensor, logits: int) -> Tensor:
    """Which logits are of classes that a client has `[logits]`: what a network makes beyond the classes, nobody has.

    Raises:
        InputError: If the network makes fewer logits than there are classes.
    """
    if logits < len(classes):
        raise InputError(
            f"label_rows = true needs a row for each of {len(classes)} classes, but the network makes {logits}"
            f" logits; set label_rows = false"
        )
    return torch.cat([classes, classes.new_zeros(logits - len(classes))])


def own_rows(wiring: Wiring, model: Model, classes: Tensor) -> Tensor:
    """The entries `[size]` that a client with these classes may speak for: all but the rows of other classes."""
    allowed = {name: torch.ones(shape, dtype=torch.bool) for name, shape in zip_layout(model)}
    for member in wiring.outputs:
        absent = member.positions.flatten()[~classes]
        if member.name in allowed:
            allowed[member.name].index_fill_(member.axis, absent, False)
    return torch.cat([mask.flatten() for mask in allowed.values()])


def zip_layout(model: Model) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of the vector's parameters, in order."""
    return zip(model.layout.names, model.layout.shapes, strict=True)
