"""Any method whose aggregation is linear, encrypted: the server adds up ciphertexts, and learns not even their mean.

`Encrypted(algorithm=FedProx())` in Python, the table `[algorithm.encrypted]` in a file; `he-fedavg` is the same for
FedAvg, by name. A method is linear when its class says so: its new model is a weighted mean of what clients send.
Methods whose replies differ in shape, or come in some rounds only, say what of them is summed by `SumsVectors`:
recommenders their tables, in rounds of exchange; submodels the dense update, zero off the mask, and the mask, whose
quotient is the mean over holders. Each client carries the method's state on by itself, from the decrypted means
(`replica`), so it holds all of that state that is not another client's, of submodels the whole model. Levels are
dealt out by the server, which tells each client its own.

Deviations from the inner method: means are those of fixed point (`FixedPoint.error` bounds the difference); a mean of
a linear method includes the reported loss, of others none is sent; integer counters of norm layers travel in the
clear; weights by examples grow up to `most_examples`. A private method must perturb its updates before they are
encrypted, at the clients; its epsilon is reported for all rounds begun, also where too few contributed for a mean,
and as of a client that took part in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self, final

import torch
from pydantic import Field, SkipValidation, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, Algorithm, ClientId, DealsLevels, ScoresItems
from fedfi.federation.client import Client
from fedfi.federation.packet import Packet
from fedfi.numerics.rounding import rounded
from fedfi.personal.private import Private
from fedfi.personal.replica import refuse_unless_summed, with_sizes, wrapped
from fedfi.personal.selective import Selective
from fedfi.personal.voting import LEAST
from fedfi.privacy.noise import Perturbs


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Encrypted(Selective):
    """A linear method whose replies travel as ciphertexts."""

    algorithm: Annotated[SkipValidation[Any], Field(description="the method")]

    @model_validator(mode="before")
    @classmethod
    def _who_takes_part(cls, given: Any) -> Any:
        return with_sizes(given, "encrypted")

    @field_validator("algorithm", mode="before")
    @classmethod
    def _given(cls, value: Any, info: ValidationInfo) -> Any:
        return wrapped(value, info.context)

    @model_validator(mode="after")
    def _can_be_encrypted(self) -> Self:
        refuse_unless_summed(self.algorithm, "encrypted")
        if isinstance(self.algorithm, Private) and self.algorithm.where == "server":
            raise ValueError(
                "Private with where = 'server' cannot be encrypted: the server cannot perturb a sum that it cannot"
                " read, and clients would see it without noise (nearest valid: where = 'client')"
            )
        return self

    @property
    def data_kind(self) -> str:  # type: ignore[override]  # of a class there, here of what it stands around
        """What the method learns from."""
        return self.inner().data_kind

    def inner(self) -> Algorithm[Any]:
        """The method."""
        found: Algorithm[Any] = self.algorithm
        return found

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """What the method scores items by, from the client's replica of its state."""
        method, (_, _, state) = self._method(), self._state(packet, client)
        if not isinstance(method, ScoresItems):
            raise InputError(f"{type(method).__name__} scores no items")
        return method.client_scores(self._to_judge(packet, client, state), client)

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """What members learn of submodels, noise so large that values beyond the clip are to be expected, and more."""
        notes, inner = super().notes_on_clients(clients), self.algorithm
        if isinstance(inner, DealsLevels):
            notes.append(
                f"sums are decrypted entry by entry: of an entry that fewer than {LEAST} clients of a round hold,"
                " members learn the holders' updates (the server does not)"
            )
        if isinstance(inner, Perturbs):
            spread, clip = inner.spread(len(clients)), self.encryption.clip
            if clip < spread.reach:
                enough = rounded((spread.most or 0.0) + spread.reach, 3, up=True)
                beside = "" if spread.most is not None else ", and what the noise is put on"
                notes.append(
                    f"encryption.clip = {clip:g}: the clients' noise has standard deviation {spread.deviation:.3g}, and"
                    f" a client with one value beyond the clip fails (nearest that is enough: {enough}{beside})"
                )
        return notes

    def ratio(self) -> float:
        """All of it."""
        return 1.0

    def urgency(self, client: Client, update: Tensor) -> Tensor:
        """Nothing is chosen."""
        return torch.ones_like(update)
