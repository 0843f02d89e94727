"""FedMA: Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, Federated learning with matched averaging, ICLR 2020.

| paper, arXiv:2002.06440 | here |
|---|---|
| Algorithm 1: layers from the first on; BBP-MAP of PFNM, by incoming weights | `growing.grow(direction="forward")` |
| matched layers freeze, clients retrain the rest | `frozen`: in round r the layers that make the first r groups |
| the last layer: mean weighted by classes | statistic `classes` |
| FedMA with communication: local models keep their original size | clients start from `growing.cut` |

So `rounds` = 1 is one matching of all layers without retraining, and `rounds` = number of layers is the paper's method.
Deviations: the paper hands the grown layers to clients while layers remain; here clients train the original widths, of
each layer the units that most clients hold, as in the paper's version with communication. The paper weighs the mean by
local data; the posterior mean weighs matched clients equally, and the last layer and norms by examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.channels import discover
from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.packet import Packet
from fedfi.federation.workbench import Benches, Workbench
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.growing import Process
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.pfnm import bench_of, matched_network
from fedfi.oneshot.uploads import Merged, Upload


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedMA(OneShot):
    """Layers matched from the first on; matched ones freeze while the rest trains on."""

    gamma: Annotated[float, Field(gt=0, description="mass of the process; more makes more neurons")] = 7.0
    sigma: Annotated[float, Field(gt=0, description="spread of clients' neurons around a global one")] = 1.0
    sigma0: Annotated[float, Field(gt=0, description="spread of global neurons")] = 1.0
    sweeps: Annotated[int, Field(ge=0, description="times that every client is matched anew")] = 5
    grow: Annotated[bool, Field(description="deploy the grown network, or its most shared neurons")] = True
    freeze: Annotated[bool, Field(description="freeze a further layer each round")] = True

    needs_channels: ClassVar[bool] = True
    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("freeze", "rounds"),
        Acts("weights", "options", given={"rescale": (True,)}),
        Acts("reestimate", "options", given={"grow": (False,), "distil": ("server", "generated")}),
    )

    def deploys_another(self) -> bool:
        """The grown network, if that is wanted."""
        return self.grow

    def needs(self) -> tuple[str, ...]:
        """Counts of classes."""
        return ("classes",)

    def frozen(self, client: Client) -> set[str]:
        """What makes the units of the first groups, one group more a round."""
        if not self.freeze or client.round == 0:
            return set()
        wiring = discover(client.workbench.module, client.task.data.spec.example())
        known = set(client.workbench.layout.names)
        first = wiring.groups[: client.round]
        return {m.name for group in first for m in group.members if m.role != "in"} & known

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Matches from the first layer on."""
        process = Process(self.gamma, self.sigma, self.sigma0, self.sweeps)
        return matched_network(uploads, context, "forward", process, self.grow)

    def deploy(self, packet: Packet, benches: Benches) -> Workbench:
        """The network of the packet's widths."""
        return bench_of(packet, benches)
