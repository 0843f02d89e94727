"""Two methods of one's own: a short one that changes local training, and a whole one.

Run them with `fedfi run examples/mymethod.toml`, or against each other and others with `fedfi compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

import fedfi


@fedfi.method
class Noisy(fedfi.Averaging):
    """FedAvg whose clients add noise to every gradient."""

    noise: Annotated[float, Field(ge=0, description="standard deviation of the noise")] = 0.01

    presets: ClassVar = {"loud": {"noise": 0.1}}

    def train(self, client: fedfi.Client) -> fedfi.Trained:
        """Local training; `client.workbench` holds the global model, and is trained where it stands."""
        gradient = client.workbench.gradient  # of all trainable parameters, as one vector
        rng = client.rng("noise")  # the same draws whatever the number of workers

        def add_noise() -> None:
            gradient.add_(torch.randn(gradient.shape, generator=rng), alpha=self.noise)

        return fedfi.train_locally(client, adjust=add_noise)


# --8<-- [start:whole]
@dataclass(frozen=True)
class MedianState:
    """What the server remembers: the model, and the names of what clients change."""

    model: fedfi.Tree
    changed: list[str]


@fedfi.method
class Median(fedfi.Algorithm[MedianState]):
    """The median of the clients' models, entry by entry, which a few odd clients cannot move far."""

    step: Annotated[float, Field(gt=0, le=1, description="share of the way towards the median")] = 1.0

    def init(self, task: fedfi.Task, rng: torch.Generator) -> MedianState:
        """The server's state before the first round; `fresh_workbench` makes the task's model from `rng`."""
        bench = fedfi.fresh_workbench(task, rng)
        changed = [*bench.parameters(), *bench.buffers()]
        return MedianState({name: tensor.clone() for name, tensor in bench.tree().items()}, changed)

    def configure(
        self, state: MedianState, round: int, clients: Sequence[str], rng: torch.Generator
    ) -> Iterable[tuple[str, fedfi.Packet]]:
        """Who takes part, and what each of them gets: tensors by name, and perhaps scalars."""
        return [(client, fedfi.Packet(state.model)) for client in self.sample(clients, rng)]

    def reply_layout(self, state: MedianState, packet: fedfi.Packet) -> fedfi.Layout:
        """What a reply must look like; another one is a failure of its client and never reaches `aggregate`."""
        return fedfi.Layout.like({name: state.model[name] for name in state.changed}, loss=float)

    def client_update(self, packet: fedfi.Packet, client: fedfi.Client) -> fedfi.Packet:
        """The work of one client, where its data are: load, train, send back."""
        bench = client.workbench
        bench.load(packet.tensors)
        trained = fedfi.train_locally(client)
        model = {name: tensor.clone() for name, tensor in (bench.parameters() | bench.buffers()).items()}
        return fedfi.Packet(model, {"loss": trained.loss})

    def aggregate(
        self, state: MedianState, round: int, replies: Iterator[fedfi.Reply], rng: torch.Generator
    ) -> tuple[MedianState, fedfi.Metrics]:
        """The next state, and numbers for `metrics.jsonl`."""
        packets = [reply.packet for reply in replies]
        model = dict(state.model)
        for name in state.changed:
            median = torch.stack([packet.tensors[name] for packet in packets]).median(0).values
            if median.is_floating_point():
                median = model[name] + self.step * (median - model[name])
            model[name] = median
        loss = sum(float(packet.scalars["loss"]) for packet in packets) / len(packets)
        return MedianState(model, state.changed), {"train/loss": loss}

    def global_model(self, state: MedianState) -> fedfi.Tree:
        """The model that a user deploys."""
        return state.model

    # The two methods below are optional: with them, clients judge a model on their own test examples.

    def configure_evaluation(
        self, state: MedianState, clients: Sequence[str], rng: torch.Generator
    ) -> Iterable[tuple[str, fedfi.Packet]]:
        """What each client judges."""
        return [(client, fedfi.Packet(state.model)) for client in clients]

    def client_evaluate(self, packet: fedfi.Packet, client: fedfi.Client) -> fedfi.Metrics:
        """Means over the client's own test examples."""
        return fedfi.evaluate_model(packet, client)


# --8<-- [end:whole]
