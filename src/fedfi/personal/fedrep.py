"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.

| paper, Algorithm 1 | here |
|---|---|
| representation phi, averaged | everything but the head |
| head h_i, tau local updates with phi fixed | `head`, `head_epochs` or `head_steps` |
| one or more updates of phi with h_i fixed | the task's recipe |

Deviations: clients start from one common head. The mean is weighted by `weights`, where the paper's is plain. With
`head = []` there is nothing to train first, and the method is FedAvg to the bit.
"""

from __future__ import annotations

import functools
from typing import Annotated, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import Trained
from fedfi.personal.parts import Head, names_of
from fedfi.personal.pieces import lasting, mask_of, train_only
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedRep(Personal):
    """The body is averaged; a client first fits its head to the body it got, then trains the body."""

    head: Head = None
    head_epochs: Annotated[int, Field(ge=1, description="local epochs tau of the head before the body's turn")] = 5
    head_steps: Annotated[int | None, Field(ge=1, description="steps of the head, instead of epochs")] = None

    def scheme(self) -> Scheme:
        """The body shared; first the head is trained, then the body."""

        def train(client: Client) -> Trained:
            head = mask_of(client, names_of(client.workbench.module, "head", self.head))
            if bool(head.any()):
                training = lasting(client.task.training, epochs=self.head_epochs, steps=self.head_steps)
                fitted = train_only(client, head, training=training, purpose="head")
                if bool(head.all()):
                    return fitted
            return train_only(client, ~head)

        return Scheme(share=functools.partial(names_of, part="body", head=self.head), train=train)
