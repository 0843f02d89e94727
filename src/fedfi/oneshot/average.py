"""The plain mean of the clients' models: FedAvg (McMahan et al., AISTATS 2017) as a merge among the others.

`fedavg` does the same in rounds, without what a merge has: independent initialisations, 16-bit uploads, uploads as
files, batch norms measured anew, and what `improving` adds. With 32-bit uploads and `reestimate = false` one round of
the two gives the same model, up to rounding.

Deviations: what a merge has besides, as said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.uploads import Merged, Upload, shares


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Average(OneShot):
    """The mean of the clients' models, by index."""

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """The mean."""
        return Merged(mean([u.model for u in uploads], shares(uploads, self.weights)))
