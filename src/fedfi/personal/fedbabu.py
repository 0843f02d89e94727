"""FedBABU: Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.

| paper, Algorithm 1 | here |
|---|---|
| body, updated and averaged | everything but the head |
| head, initialised once and never updated in the federation | `head` |
| personalisation: fine-tuning of the whole (or body, or head) | `epochs` or `steps`, `tuned` |

Deviations: none known. With `head = []` the federation is FedAvg's to the bit.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal, final

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
class FedBABU(Personal):
    """The body is trained under a head that nobody changes; fine-tuned before the model is used."""

    head: Head = None
    epochs: Annotated[int, Field(ge=1, description="local epochs of fine-tuning")] = 1
    steps: Annotated[int | None, Field(ge=1, description="steps of fine-tuning, instead of epochs")] = None
    tuned: Annotated[Literal["all", "body", "head"], Field(description="what fine-tuning changes")] = "all"

    def scheme(self) -> Scheme:
        """The body shared and trained; fine-tuned to be judged."""

        def train(client: Client) -> Trained:
            return train_only(client, mask_of(client, names_of(client.workbench.module, "body", self.head)))

        def judge(client: Client) -> None:
            mask = mask_of(client, names_of(client.workbench.module, self.tuned, self.head))
            training = lasting(client.task.training, epochs=self.epochs, steps=self.steps)
            train_only(client, mask, training=training, purpose="finetune")

        return Scheme(share=functools.partial(names_of, part="body", head=self.head), train=train, judge=judge)
