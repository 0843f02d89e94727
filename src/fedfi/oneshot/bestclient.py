"""The best single client, a reference that a merge should beat.

The model that scores best on the server's examples; without any, that of the client with most examples. In further
rounds every client goes on from it. Deviations: none, since it has no paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.server import best_of
from fedfi.oneshot.uploads import Merged, Upload, largest


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class BestClient(OneShot):
    """The client's model that is best on the server's examples, as the client has it."""

    reestimate: Annotated[
        bool, Field(description="measure the chosen model's batch norm statistics on the server's examples")
    ] = False

    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("weights", "options", given={"rescale": (True,)}),
        Acts("tune_weights", "options"),
    )

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Judges every model."""
        best, scores = best_of([u.model for u in uploads], context.server)
        if context.server.examples is None:
            best = largest(uploads)
        found = {f"score/{u.party}": s for u, s in zip(uploads, scores, strict=False)}
        return Merged(uploads[best].model, {"merge/client": uploads[best].party, **found})
