"""Any linear method, encrypted: the server adds up ciphertexts of replies and learns neither replies nor their mean.

`Encrypted(FedProx())` and the like, in Python; `he-fedavg` is the same for FedAvg, by name. A method is linear when
its class says so: its new model is a weighted mean of what clients send. Each client carries the method's state on by
itself, from the decrypted means (`replica`).

Deviations from the inner method: means are those of fixed point (`FixedPoint.error` bounds the difference); a mean
includes the reported loss; integer counters of norm layers travel in the clear; weights grow with the number of
examples up to `most_examples`.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from pydantic import Field, SkipValidation, field_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG, Algorithm
from fedfi.federation.client import Client
from fedfi.personal.replica import refuse_unless_linear
from fedfi.personal.selective import Selective


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Encrypted(Selective):
    """A linear method whose replies travel as ciphertexts."""

    algorithm: Annotated[SkipValidation[Any], Field(description="the method")]

    @field_validator("algorithm", mode="before")
    @classmethod
    def _linear(cls, value: Any) -> Any:
        refuse_unless_linear(value, "encrypted")
        return value

    def inner(self) -> Algorithm[Any]:
        """The method."""
        found: Algorithm[Any] = self.algorithm
        return found

    def ratio(self) -> float:
        """All of it."""
        return 1.0

    def urgency(self, client: Client, update: Tensor) -> Tensor:
        """Nothing is chosen."""
        return torch.ones_like(update)
