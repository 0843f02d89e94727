"""Local training alone: what a client reaches without a federation.

Nothing is shared but the loss and the number of examples, which the server reports. Clients start from one common
initialisation. Deviations: none, since it has no paper.
"""

from __future__ import annotations

import functools
from typing import ClassVar, final

from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.personal.parts import names_of
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Local(Personal):
    """Each client trains its own model, and shares nothing."""

    central: ClassVar[bool] = False

    def scheme(self) -> Scheme:
        """Nothing shared."""
        return Scheme(share=functools.partial(names_of, part="none"))
