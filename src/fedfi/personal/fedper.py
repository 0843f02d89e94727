"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818.

| paper | here |
|---|---|
| base layers W_B, averaged | everything but the head |
| personalisation layers W_P, never sent | `head` |
| FedPer-Client: SGD on both together | plain local training |

Deviations: clients start from one common head, where the paper lets each draw its own. With `head = []` nothing is
private, and the method is FedAvg to the bit.
"""

from __future__ import annotations

import functools
from typing import final

from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.personal.parts import Head, names_of
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedPer(Personal):
    """The body is averaged, each client has its own head."""

    head: Head = None

    def scheme(self) -> Scheme:
        """The body shared, both trained together."""
        return Scheme(share=functools.partial(names_of, part="body", head=self.head))
