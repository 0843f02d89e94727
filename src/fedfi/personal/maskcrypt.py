"""MaskCrypt: Hu and Li, MaskCrypt: Federated Learning with Selective Homomorphic Encryption, TDSC 2024.

| paper | here |
|---|---|
| gradient-guided priority: first-order effect of hiding an entry | `urgency`: update^2, see below |
| each client's mask of the share rho | `protected` |
| mask consensus at the server, each round | `negotiated`, by votes |
| the others in the clear | `selective` |

Deviations: the authors rank by gradient * (w_exposed - w), the gradient being that at the trained model w, and
w_exposed what an observer knows of it already. The update of a local training *is* its accumulated gradient up to the
step size, and the observer is taken to know the last global model and nothing else, so both factors are proportional
to the update, and their product is its square. Masks are of packets. The paper's consensus interleaves the clients'
priorities; here the packets with most votes win.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, Algorithm
from fedfi.federation.client import Client
from fedfi.personal.plain import Plain
from fedfi.personal.selective import Selective


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class MaskCrypt(Selective):
    """FedAvg of which each round's most revealing packets are encrypted."""

    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"
    protected: Annotated[float, Field(gt=0, le=1, description="share rho of the packets that is encrypted")] = 0.1

    agrees: ClassVar[Literal["never", "once", "each round"]] = "each round"

    def inner(self) -> Algorithm[Any]:
        """FedAvg."""
        return Plain(weights=self.weights)

    def ratio(self) -> float:
        """What is encrypted."""
        return self.protected

    def urgency(self, client: Client, update: Tensor) -> Tensor:
        """What hiding an entry takes away from an observer, to first order; buffers have no gradient."""
        found = update.square()
        found[client.workbench.layout.size :] = 0
        return found
