"""LG-FedAvg: Liang et al., Think Locally, Act Globally, arXiv:2001.01523.

| paper | here |
|---|---|
| local representation, never sent | everything but the head |
| global model on top, averaged | `head` |

Deviations: the paper's experiments begin with rounds of FedAvg over the whole model; begin with a checkpoint of your
own for that. Its auxiliary losses (fairness, adversarial) are not here.
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
class LGFedAvg(Personal):
    """The head is averaged, each client has its own body."""

    head: Head = None

    def scheme(self) -> Scheme:
        """The head shared, both trained together."""
        return Scheme(share=functools.partial(names_of, part="head", head=self.head))
