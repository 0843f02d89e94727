"""FedML-HE: Jin et al., An Efficient HE-Based Privacy-Preserving Federated Learning System, arXiv:2303.10837.

| paper | here |
|---|---|
| sensitivity of each parameter at the client, of the first model | `urgency`: how the gradient moves with the label |
| one mask, agreed once before training | first negotiation, by votes of packets |
| p, share that is encrypted; the others are averaged in the clear | `protected` |

Deviations: the paper's sensitivity is the norm over classes of d log p_c / d w; here each class counts by its
probability, which makes it the exact Fisher information that `numerics.fisher` knows. Clients vote for packets with
masks, where the paper sums encrypted maps of single parameters: a packet is what a ciphertext holds.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, Algorithm
from fedfi.federation.client import Client
from fedfi.numerics.fisher import diagonal_fisher
from fedfi.personal.plain import Plain
from fedfi.personal.selective import Selective


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedMLHE(Selective):
    """FedAvg whose most sensitive parameters are encrypted, by a mask that is agreed on once."""

    weights: Annotated[Literal["examples", "uniform"], Field(description="weight of a client in the mean")] = "examples"
    protected: Annotated[float, Field(gt=0, le=1, description="share of the packets that is encrypted")] = 0.1
    sensitivity_examples: Annotated[int, Field(ge=1, description="examples that sensitivity is measured on")] = 32

    agrees: ClassVar[Literal["never", "once", "each round"]] = "once"

    def inner(self) -> Algorithm[Any]:
        """FedAvg."""
        return Plain(weights=self.weights)

    def ratio(self) -> float:
        """What is encrypted."""
        return self.protected

    def urgency(self, client: Client, update: Tensor) -> Tensor:
        """Sensitivity of the parameters; buffers and the loss want no protection."""
        bench, data = client.workbench, client.data.train
        chosen = torch.randperm(len(data), generator=client.rng("sensitivity"))[: self.sensitivity_examples]
        inputs, targets = data.batch(chosen)
        bench.module.eval()
        batch = (inputs.to(client.device), targets.to(client.device))
        found = diagonal_fisher(bench.module, [batch], client.task.loss, kind="exact")
        vector = bench.layout.join(found).cpu()
        return torch.cat([vector, vector.new_zeros(len(update) - len(vector))])
