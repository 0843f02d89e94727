"""FedAvg out of this family's pieces: everything shared, plain training (McMahan et al., AISTATS 2017).

It is `averaging.FedAvg` to the bit; families do not import each other, and the encrypted baselines need it.
"""

from __future__ import annotations

from typing import final

from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Plain(Personal):
    """Federated averaging."""

    def scheme(self) -> Scheme:
        """All shared."""
        return Scheme()
