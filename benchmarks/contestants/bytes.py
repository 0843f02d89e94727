"""What the two Flower apps of `benchmarks.flower` send to and fro: a model of so many parameters that nobody trains.

Imports nothing of fedfi, since a bare Flower app uses it too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TENSORS = 12


class Weights(nn.Module):
    """Twelve layers that come to about so many parameters, and logits that none of them has a part in."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, max(1, parameters // (2 * TENSORS))) for _ in range(TENSORS))

    def forward(self, inputs: Tensor) -> Tensor:
        """Two logits an example."""
        return inputs[:, :1].expand(-1, 2)


def model(parameters: int) -> nn.Module:
    """The model; its values are those that torch draws."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Weights(parameters)


def note(config: Mapping[str, Any], **content: Any) -> None:
    """Writes a line of what was reached, and when, by a clock that all processes of a machine share."""
    with Path(str(config["notes"])).open("a") as file:
        file.write(json.dumps({"time": time.monotonic(), **content}) + "\n")
