"""The ensemble of the clients' models, an upper reference of one-shot merging: Guha et al., arXiv:1902.11175.

What is deployed is all K models; class probabilities are averaged (`combine`). Its cost is K models to store and K
forward passes a prediction. In further rounds clients start from the mean of the models, since an ensemble cannot be
trained on from.

Deviations: the paper also chooses which models take part; here all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Packet
from fedfi.federation.workbench import Benches, Workbench
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.together import Combine, bench_of, joined
from fedfi.oneshot.uploads import Merged, Upload, shares


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Ensemble(OneShot):
    """All clients' models, their predictions averaged."""

    combine: Annotated[Combine, Field(description="average class probabilities, or logits")] = "probabilities"

    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("combine", "reader"),
        *(Acts(option, "options", given={"distil": ("server", "generated")}) for option in ("weights", "reestimate")),
    )

    def deploys_another(self) -> bool:
        """All models."""
        return True

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Keeps all models."""
        models = [u.model for u in uploads]
        return Merged(mean(models, shares(uploads, self.weights)), {"models": float(len(models))}, joined(models))

    def deploy(self, packet: Packet, benches: Benches) -> Workbench:
        """A network of all models; before the first merge there is one."""
        if not any(name.startswith("networks.") for name in packet.tensors):
            packet = Packet(joined([packet.tensors]))
        return bench_of(packet, benches, self.combine)
