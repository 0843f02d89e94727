"""The server's half of federated averaging, shared by the methods that differ only in what a client minimises."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from fedfi.arguments import described
from fedfi.errors import InputError
from fedfi.federation.algorithm import Algorithm, ClientId, Metrics, Reply, method
from fedfi.federation.client import Client
from fedfi.federation.evaluation import evaluate_model
from fedfi.federation.folding import WeightedMean, stepped
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.task import Task
from fedfi.federation.training import Trained
from fedfi.federation.workbench import fresh_workbench


@dataclass(frozen=True)
class AveragingState:
    """The global model, and which of its entries clients change: by training, or as buffers."""

    model: Tree
    trained: list[str]
    buffers: list[str]


@method
class Averaging(Algorithm[AveragingState]):
    """Broadcast, local training, weighted mean of the updates; what local training is, a method says."""

    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"
    server_learning_rate: Annotated[float, Field(gt=0, description="factor of the mean update")] = 1.0

    linear: ClassVar[bool] = True

    def init(self, task: Task, rng: torch.Generator) -> AveragingState:
        """A freshly initialised model."""
        bench = fresh_workbench(task, rng)
        model = {n: t.clone() for n, t in bench.tree().items()}
        return AveragingState(model, bench.layout.names, list(bench.buffers()))

    def configure(
        self, state: AveragingState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the global model to the sampled clients."""
        packet = Packet(state.model)
        return ((client, packet) for client in self.sample(clients, rng))

    def reply_layout(self, state: AveragingState, packet: Packet) -> Layout:
        """The update of every trained entry, the buffers' new values, the loss and the number of examples."""
        returned = [*state.trained, *state.buffers]
        like = Layout.like({n: state.model[n] for n in returned}, loss=float, examples=int)
        return dataclasses.replace(like, least={"examples": 1})

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains the model and returns start minus end."""
        bench = client.workbench
        bench.load(packet.tensors)
        start = bench.vector.detach().clone()
        trained = self.train(client)
        if not isinstance(trained, Trained):
            raise InputError(
                f"{type(self).__name__}.train must return a fedfi.Trained, as train_locally(client) does,"
                f" got {described(trained)}"
            )
        update = bench.layout.split(start - bench.vector.detach())
        buffers = {n: t.clone() for n, t in bench.buffers().items()}
        return Packet(update | buffers, {"loss": trained.loss, "examples": trained.examples})

    def aggregate(
        self, state: AveragingState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[AveragingState, Metrics]:
        """X <- x - server_learning_rate * mean(start - end)."""
        mean, loss = WeightedMean(), WeightedMean()
        for reply in replies:
            examples = float(reply.packet.scalars["examples"])
            weight = examples if self.weights == "examples" else 1.0
            mean.add(reply.packet.tensors, weight)
            loss.add_scalar("loss", reply.packet.scalars["loss"], examples)
        model = stepped(state.model, mean.mean(), set(state.trained), self.server_learning_rate)
        return AveragingState(model, state.trained, state.buffers), {"train/loss": loss.scalar("loss")}

    def global_model(self, state: AveragingState) -> Tree:
        """The mean model."""
        return state.model

    def configure_evaluation(
        self, state: AveragingState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Every client judges the global model."""
        packet = Packet(state.model)
        return ((client, packet) for client in clients)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges the global model on the client's own test examples."""
        return evaluate_model(packet, client)

    @abstractmethod
    def train(self, client: Client) -> Trained:
        """Trains the client's workbench, which holds the global model."""
