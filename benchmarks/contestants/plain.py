"""Federated averaging as one writes it by hand: one model, one thread, the data in memory, nothing else."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.contestants import work


def main() -> None:
    order = work.order()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = work.read_data(order.data)
    model: nn.Module = work.lenet()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    finished = []
    for _ in range(order.rounds):
        mean = {name: torch.zeros_like(value) for name, value in state.items()}
        for client in torch.randperm(work.CLIENTS)[: work.COHORT].tolist():
            rows = work.rows_of(client)
            model.load_state_dict(state)
            work.train(model, images[rows], labels[rows])
            for name, value in model.state_dict().items():
                mean[name].add_(value, alpha=1 / work.COHORT)
        state = mean
        finished.append(work.now())
    work.report(order, finished, state)


if __name__ == "__main__":
    main()
