"""The same with `fedfi.run`, without a run directory and without evaluation."""

from __future__ import annotations

from benchmarks.contestants import work
from fedfi import ClientData, Dataset, Evaluate, FedAvg, FederatedData, InputSpec, Task, Training, __version__, run


def main() -> None:
    import torch

    order = work.order()
    images, labels = work.read_data(order.data)
    spec = InputSpec(kind="image", shape=(3, 32, 32), classes=10)
    data = Dataset(inputs=images, targets=labels, spec=spec)
    rows = torch.arange(len(data))
    left, nothing = data.examples(rows[-work.LEFT :]), data.examples(rows[:0])
    clients = {
        str(client): ClientData(train=data.examples(rows[work.rows_of(client)]), test=nothing)
        for client in range(work.CLIENTS)
    }
    task = Task(
        model=work.lenet,
        data=FederatedData(clients=clients, test=left, validation=None, spec=spec),
        training=Training(learning_rate=work.RATE, batch_size=work.BATCH, steps=work.STEPS),
    )
    finished: list[float] = []
    result = run(
        FedAvg(clients_per_round=work.COHORT),
        task,
        rounds=order.rounds,
        workers=order.workers,
        evaluate=Evaluate(every=order.rounds, levels=False, local=False),
        observe=lambda _: finished.append(work.now()),
    )
    if result.failures:
        raise RuntimeError(f"client {result.failures[0].client} failed: {result.failures[0].error}")
    work.report(order, finished, result.model, fedfi=__version__)


if __name__ == "__main__":
    main()
