"""The same with fedfi's loop on Flower: federated averaging whose clients send back the model that they got."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.contestants import bytes as work
from fedfi import Client, ClientData, Dataset, Evaluate, FederatedData, InputSpec, Packet, Task, run
from fedfi.federation.algorithm import Algorithm, Metrics, Reply, method
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Tree
from fedfi.federation.workbench import fresh_workbench
from fedfi.flower import FlowerEngine, Node, clients_of_partition, node_app

server_app = ServerApp()


@final
@method
class Echo(Algorithm[Tree]):
    """FedAvg without training."""

    def init(self, task: Task, rng: torch.Generator) -> Tree:
        """The model that all begin with."""
        return {name: tensor.clone() for name, tensor in fresh_workbench(task, rng).tree().items()}

    def configure(
        self, state: Tree, round: int, clients: Sequence[str], rng: torch.Generator
    ) -> Iterable[tuple[str, Packet]]:
        """The model to everybody."""
        return [(client, Packet(state)) for client in clients]

    def reply_layout(self, state: Tree, packet: Packet) -> Layout:
        """The model back."""
        return Layout.like(state)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Nothing is trained."""
        return Packet(packet.tensors)

    def aggregate(
        self, state: Tree, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[Tree, Metrics]:
        """The mean."""
        mean = WeightedMean()
        for reply in replies:
            mean.add(reply.packet.tensors)
        return mean.mean(), {}

    def global_model(self, state: Tree) -> Tree:
        """The mean."""
        return state


@functools.cache
def task(parameters: int, nodes: int) -> Task:
    """A client a node, with an example each that says nothing."""
    spec = InputSpec(kind="tabular", shape=(1,), classes=2)
    data = Dataset(torch.zeros(2 * nodes + 1, 1), torch.zeros(2 * nodes + 1, dtype=torch.int64), spec=spec)
    rows = torch.arange(2 * nodes + 1)[:, None]
    clients = {str(i): ClientData(data.examples(rows[2 * i]), data.examples(rows[2 * i + 1])) for i in range(nodes)}
    return Task(
        model=functools.partial(work.model, parameters),
        data=FederatedData(clients, data.examples(rows[-1]), None, spec),
        loss=lambda outputs, targets: torch.zeros(len(targets)),
        evaluation=lambda outputs, targets: {"loss": torch.zeros(len(targets))},
    )


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """The rounds; nothing is written, as with the other one."""
    config = context.run_config
    rounds, nodes = int(config["rounds"]), int(config["nodes"])
    there = task(int(config["parameters"]), nodes)
    engine = FlowerEngine(grid, Echo(), there)
    engine.wait(600)
    work.note(config, round=0)
    run(
        Echo(),
        there,
        rounds=rounds,
        engine=engine,
        evaluate=Evaluate(every=rounds, levels=False, local=False),
        observe=lambda line: work.note(config, round=line["round"]),
    )
    work.note(config, done=True)


def _node(context: Any) -> Node:
    told, config = context.node_config, context.run_config
    there = task(int(config["parameters"]), int(config["nodes"]))
    held = clients_of_partition(list(there.data.clients), int(told["partition-id"]), int(told["num-partitions"]))
    return Node(Echo(), there, clients=held, memory=Path(str(told["memory"])))


client_app = node_app(_node)
