"""The same with Flower's simulation on Ray: its FedAvg, a ClientApp that trains by hand, one core a client.

The ClientApp must be importable by Ray's workers, so the entry point is at the end and imports this module.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.contestants import work

client_app = ClientApp()


@cache
def worker(data: str) -> tuple[nn.Module, Tensor, Tensor]:
    """What a worker process makes once and uses for all of its clients."""
    torch.set_num_threads(1)
    return work.lenet(), *work.read_data(Path(data))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    model, images, labels = worker(str(message.content["config"]["data"]))
    rows = work.rows_of(int(context.node_config["partition-id"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = work.train(model, images[rows], labels[rows])
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": work.HELD, "loss": loss}),
        }
    )
    return Message(content=content, reply_to=message)


def main() -> None:
    order = work.order()
    finished: list[float] = []
    models: list[dict[str, Tensor]] = []
    server_app = ServerApp()

    def clock(server_round: int, arrays: ArrayRecord) -> None:
        """Flower's hook for evaluation at the server; here it only notes the time."""
        if server_round:
            finished.append(work.now())

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        strategy = FedAvg(fraction_train=work.COHORT / work.CLIENTS, fraction_evaluate=0.0)
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(work.lenet().state_dict()),
            num_rounds=order.rounds,
            train_config=ConfigRecord({"data": str(order.data)}),
            evaluate_fn=clock,
        )
        models.append(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=work.CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": order.workers, "_temp_dir": str(order.scratch)},
        },
    )
    work.report(order, finished, models[0], flwr=metadata.version("flwr"), ray=metadata.version("ray"))


if __name__ == "__main__":
    from benchmarks.contestants import with_flower

    with_flower.main()
