"""FedAvg under full homomorphic encryption: every parameter of every update is a ciphertext.

The baseline of most papers on encrypted federated learning (Phong et al., TIFS 2018, for additively homomorphic
schemes; Zhang et al., BatchCrypt, USENIX ATC 2020, for packed ones). FedAvg itself is McMahan et al., AISTATS 2017.

| usual | here |
|---|---|
| Enc(w_k), sum at the server, division after decryption | `selective.Selective` with all packets protected |
| n_k / n weighting | inside the ciphertext, beside each packet |

Deviations: fixed point, see `encrypted`; the difference from FedAvg is within `FixedPoint.error`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, Algorithm
from fedfi.federation.client import Client
from fedfi.personal.plain import Plain
from fedfi.personal.selective import Selective


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class HEFedAvg(Selective):
    """FedAvg whose server sees ciphertexts alone."""

    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"

    def inner(self) -> Algorithm[Any]:
        """FedAvg."""
        return Plain(weights=self.weights)

    def ratio(self) -> float:
        """All of it."""
        return 1.0

    def urgency(self, client: Client, update: Tensor) -> Tensor:
        """Nothing is chosen."""
        return torch.ones_like(update)
