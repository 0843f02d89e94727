"""One family out of few pieces: what is shared, how it is mixed in, what is trained, and what is judged.

Every method here broadcasts the shared part of a model, lets clients put a model of their own together and train it,
and averages the updates of the shared part as FedAvg does; all else stays in the client's memory. With everything
shared and plain training it *is* FedAvg, to the bit.

| method | shared | mixed in | trained | judged |
|---|---|---|---|---|
| local | nothing | | all | own model |
| finetune | all | | all | global model, fine-tuned |
| fedper | body | own head | all | body + own head |
| fedrep | body | own head | head, then body | body + own head |
| lg-fedavg | head | own body | all | own body + head |
| fedbabu | body | first head | body | body, fine-tuned |
| ditto | all | | all; own model, pulled to the global one | own model |
| apfl | all | | all; own model within a mixture | mixture |
| pfedme | all | | distance to a proximal own model | own model |
| perfedavg | all | | what adapts well | global model, adapted |
| fedala | all | own last model, by learned weights | all | own mixture |
| feddpa | all | own entries of high Fisher information | those, then the others | own model |
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import nn

from fedfi.federation.algorithm import CONFIG, Algorithm, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.evaluation import evaluate_workbench
from fedfi.federation.folding import WeightedMean, stepped
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.task import Task
from fedfi.federation.training import Trained, train_locally
from fedfi.federation.workbench import fresh_workbench
from fedfi.personal.parts import names_of
from fedfi.personal.pieces import nothing

_OWN = "own:"


def everything(module: nn.Module) -> set[str]:
    """The piece that shares all."""
    return names_of(module, "all")


@dataclass(frozen=True)
class Scheme:
    """The pieces of a method; each works on the client's workbench.

    Attributes:
        share: Names of the parameters and buffers that travel.
        mix: What happens to the received model before training.
        train: Training; what it leaves on the workbench is shared, or remembered.
        judge: What happens to the received model before it is judged.
    """

    share: Callable[[nn.Module], set[str]] = everything
    mix: Callable[[Client], None] = nothing
    train: Callable[[Client], Trained] = train_locally
    judge: Callable[[Client], None] = nothing


@dataclass(frozen=True)
class PersonalState:
    """The server's state.

    Attributes:
        model: Shared entries as averaged, the others as they were initialised.
        trained: Shared parameters.
        buffers: Shared buffers.
        met: Clients that have delivered, which therefore have a private part.
    """

    model: Tree
    trained: list[str]
    buffers: list[str]
    met: dict[str, bool]


@validated(frozen=True, kw_only=True, config=CONFIG)
class Personal(Algorithm[PersonalState]):
    """Broadcast of the shared part, local work, weighted mean of its updates; the pieces come from the method."""

    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"
    server_learning_rate: Annotated[float, Field(gt=0, description="factor of the mean update")] = 1.0

    linear: ClassVar[bool] = True

    @abstractmethod
    def scheme(self) -> Scheme:
        """The method's pieces."""

    def init(self, task: Task, rng: torch.Generator) -> PersonalState:
        """A freshly initialised model, the same for all clients."""
        bench = fresh_workbench(task, rng)
        shared = self.scheme().share(bench.module)
        return PersonalState(
            model={n: t.clone() for n, t in bench.tree().items()},
            trained=[n for n in bench.layout.names if n in shared],
            buffers=[n for n in bench.buffers() if n in shared],
            met={},
        )

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """An empty head, since who gave it may take something for private that is not."""
        if getattr(self, "head", None) != []:
            return []
        shared = "the whole model" if self.scheme().share(nn.Linear(1, 1, device="meta")) else "nothing"
        return [f"head = []: no module is the head, so that clients share {shared}"]

    def configure(
        self, state: PersonalState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the shared part; a newcomer gets the first values of its private part, too."""
        return self._packets(state, self.sample(clients, rng))

    def reply_layout(self, state: PersonalState, packet: Packet) -> Layout:
        """The update of the shared part, the loss and the number of examples."""
        returned = {n: state.model[n] for n in [*state.trained, *state.buffers]}
        return dataclasses.replace(Layout.like(returned, loss=float, examples=int), least={"examples": 1})

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Mixes, trains, remembers the private part, and returns received minus trained of the shared part."""
        bench, scheme = client.workbench, self.scheme()
        shared = scheme.share(bench.module)
        _receive(packet, client)
        received = bench.vector.detach().clone()
        scheme.mix(client)
        trained = scheme.train(client)
        change = bench.layout.split(received - bench.vector.detach())
        back = {n: t for n, t in change.items() if n in shared}
        back |= {n: t.clone() for n, t in bench.buffers().items() if n in shared}
        for name, value in (bench.parameters() | bench.buffers()).items():
            if name not in shared:
                client.memory[_OWN + name] = value
        return Packet(back, {"loss": trained.loss, "examples": trained.examples})

    def aggregate(
        self, state: PersonalState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[PersonalState, Metrics]:
        """X <- x - server_learning_rate * mean(received - trained), for the shared part."""
        mean, loss, met = WeightedMean(), WeightedMean(), dict(state.met)
        for reply in replies:
            examples = float(reply.packet.scalars["examples"])
            mean.add(reply.packet.tensors, examples if self.weights == "examples" else 1.0)
            loss.add_scalar("loss", reply.packet.scalars["loss"], examples)
            met[reply.client] = True
        model = stepped(state.model, mean.mean(), set(state.trained), self.server_learning_rate)
        metrics: Metrics = {"train/loss": loss.scalar("loss")}
        if round == 0 and (head := getattr(self, "head", [])) != []:
            if not state.trained:
                metrics["head"] = "the head is all of the model, so that clients share nothing"
            elif head and len(state.model) == len(state.trained) + len(state.buffers):
                metrics["head"] = "the head is all of the model, so that clients share all of it"
        return dataclasses.replace(state, model=model, met=met), metrics

    def global_model(self, state: PersonalState) -> Tree:
        """The shared part, with the first values of whatever is private."""
        return state.model

    def configure_evaluation(
        self, state: PersonalState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Every client judges its own model, those that never took part too."""
        return self._packets(state, clients)

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Judges the client's own model on its own test examples."""
        _receive(packet, client)
        self.scheme().judge(client)
        return evaluate_workbench(client)

    def _packets(self, state: PersonalState, clients: Iterable[ClientId]) -> Iterable[tuple[ClientId, Packet]]:
        shared = {*state.trained, *state.buffers}
        known, first = Packet({n: t for n, t in state.model.items() if n in shared}), Packet(state.model)
        return ((client, known if client in state.met else first) for client in clients)


def _receive(packet: Packet, client: Client) -> None:
    """The received part and the client's own one, on the workbench."""
    client.workbench.load(packet.tensors)
    own = {n.removeprefix(_OWN): t for n, t in client.memory.items() if n.startswith(_OWN)}
    client.workbench.load(own)
