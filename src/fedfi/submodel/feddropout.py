"""Federated Dropout: Caldas, Konecny, McMahan, Talwalkar, Expanding the Reach of Federated Learning, 2018 (1812.07210).

A client gets random channels of every layer, drawn anew for each client and round; layers that share a stream of
channels, as residual connections make them, share the draw. Deviations: the paper drops a fixed share of activations
at every client alike, and its first and last layers' inputs and outputs stay whole, as they do here; levels are this
library's generalisation. Levels are judged on a draw that is the same each time.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic.dataclasses import dataclass as validated

from fedfi.channels import Units, Wiring
from fedfi.federation.algorithm import CONFIG
from fedfi.submodel.structured import Structured


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FederatedDropout(Structured):
    """Random channels of every layer, drawn anew for each client and round."""

    def units(self, wiring: Wiring, width: float, round: int, rng: torch.Generator) -> Units:
        """Any."""
        return wiring.random(width, rng)
