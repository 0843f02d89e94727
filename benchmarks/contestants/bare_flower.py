"""Flower alone: its own FedAvg, and a ClientApp that sends back the model that it got."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.contestants import bytes as work

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A client's round."""
    state = message.content["arrays"].to_torch_state_dict()
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """The rounds, between which only the time is noted."""
    config = context.run_config
    nodes = int(config["nodes"])
    strategy = FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes
    )  # fmt: skip

    def clock(server_round: int, arrays: ArrayRecord) -> None:
        """Flower's hook for evaluation at the server; called before the first round too."""
        work.note(config, round=server_round)

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(work.model(int(config["parameters"])).state_dict()),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord(),
        evaluate_fn=clock,
    )
    work.note(config, done=True)
