"""A method whose clients remember, and answer with what they remember."""

from __future__ import annotations

from typing import final

import torch
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG, Algorithm
from fedfi.federation.evaluation import evaluate_model
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet
from fedfi.federation.training import train_locally
from fedfi.federation.workbench import fresh_workbench


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Remembering(Algorithm[dict]):
    """FedAvg, but a client sends the mean of its new model and of all that it sent before."""

    def init(self, task, rng):
        return {n: t.clone() for n, t in fresh_workbench(task, rng).tree().items()}

    def configure(self, state, round, clients, rng):
        return [
            (c, Packet(state, {"round": round}, {"raw": bytes([round, 0, 255])})) for c in self.sample(clients, rng)
        ]

    def reply_layout(self, state, packet):
        return Layout({n: (tuple(t.shape), t.dtype) for n, t in state.items()}, {"times": int}, {"raw": 3})

    def client_update(self, packet, client):
        client.workbench.load(packet.tensors)
        train_locally(client)
        times = client.memory.get("times", torch.zeros((), dtype=torch.int64)) + 1
        sent = {}
        for name, value in client.workbench.tree().items():
            total = client.memory.get(name, torch.zeros_like(value)) + value
            client.memory[name] = total
            sent[name] = total / times if total.is_floating_point() else value.clone()
        client.memory["times"] = times
        return Packet(sent, {"times": int(times)}, packet.blobs)

    def aggregate(self, state, round, replies, rng):
        mean, times = WeightedMean(), 0
        for reply in replies:
            mean.add(reply.packet.tensors)
            times += reply.packet.scalars["times"]
        return mean.mean(), {"times": float(times)}

    def global_model(self, state):
        return state

    def configure_evaluation(self, state, clients, rng):
        return [(c, Packet(state)) for c in clients]

    def client_evaluate(self, packet, client):
        client.memory["evaluated"] = torch.tensor([float(client.round)])
        return evaluate_model(packet, client)
