"""A server's memory when 100 clients with a ResNet-18 have all taken part; run as a process of its own by `submodel`.

The server's real code does everything: `FedFIbOS.init`, `configure`, `reply_layout` and `aggregate`, in one round with
all clients and one with a tenth of them, whose rows are read back. Only the replies are made up, with the shapes, types
and magnitudes of real ones, so that no client has to train. The last line printed is JSON: resident and peak resident
memory in bytes, before the state was made and after the rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.resnet import task_of
from fedfi import FedFIbOS, Packet, Reply

STATUS = Path("/proc/self/status")


def resident() -> dict[str, int]:
    """Resident memory now and at its highest so far, in bytes."""
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return {"resident": int(fields["VmRSS"].split()[0]) * 1024, "peak": int(fields["VmHWM"].split()[0]) * 1024}


def replies(algorithm: FedFIbOS, state: Any, clients: list[str], round: int) -> Iterator[Reply]:
    """Made-up replies to what the server really sends, one at a time as from an engine."""
    noise = torch.Generator().manual_seed(round)
    for client, sent in algorithm.configure(state, round, clients, torch.Generator().manual_seed(round)):
        back = {
            "update": torch.randn(len(sent.tensors["kept"]), generator=noise).mul_(1e-3),
            "fisher": torch.randn(state.model.layout.pool, generator=noise).mul_(3).exp_().mul_(1e-6),
        }
        reply = Packet(back, {"loss": 2.0, "examples": 500})
        algorithm.reply_layout(state, sent).check(reply, client)
        yield Reply(client, reply, sent=sent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--width", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = resident()

    algorithm = FedFIbOS(participation=1.0)
    clients = [str(i) for i in range(options.clients)]
    state = algorithm.init(task_of(width=options.width, steps=1), torch.Generator().manual_seed(0))
    for round, participation in enumerate((1.0, 0.1)):
        algorithm = replace(algorithm, participation=participation)
        incoming = replies(algorithm, state, clients, round)
        state, _ = algorithm.aggregate(state, round, incoming, torch.Generator().manual_seed(round))
    if len(state.averages.rows) != options.clients:
        raise RuntimeError(f"{len(state.averages.rows)} clients have a row, expected {options.clients}")
    parameters = state.model.layout.size
    print(json.dumps({"parameters": parameters, "clients": options.clients, "before": before, "after": resident()}))


if __name__ == "__main__":
    main()
