"""PFNM: Yurochkin et al., Bayesian nonparametric federated learning of neural networks, ICML 2019, arXiv:1905.12022.

| paper | here |
|---|---|
| beta-Bernoulli process, MAP by one assignment a client, Eqs. 6-9, Algorithm 1 | `numerics.nonparametric.match_units` |
| gamma, sigma^2, sigma0^2 | `gamma`, `sigma`, `sigma0` |
| multilayer, Algorithm 2: from the last hidden layer to the first | `growing.grow(direction="backward")` |
| v = [bias, outgoing weights]; the first layer's also incoming | `growing` |
| classes weighted by their frequency at each client (authors' program) | statistic `classes` |

The network grows: a unit that no other client has stays. `grow = false` deploys the original widths instead, of each
layer the units that most clients hold; in further rounds clients start from those. Deviations: convolutions are matched
channel by channel, as FedMA's comparison does; norms and buffers are averaged over the clients that hold a unit; the
last layer's bias is the mean weighted by classes, without a prior. `weights` says nothing here: the posterior weighs
clients by precision, and what belongs to no unit is averaged by numbers of examples. (FedFisher's program, on which
FedFiOT's comparison builds, runs FedMA's matching, from the input on, under the name PFNM: that is `fedma` here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG, Metrics
from fedfi.federation.packet import Packet
from fedfi.federation.workbench import Benches, Workbench
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.growing import Direction, Process, cut, grow, homes, widened
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.uploads import Merged, Upload


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class PFNM(OneShot):
    """Neurons matched, or added, to a growing set of global ones."""

    gamma: Annotated[float, Field(gt=0, description="mass of the process; more makes more neurons")] = 7.0
    sigma: Annotated[float, Field(gt=0, description="spread of clients' neurons around a global one")] = 1.0
    sigma0: Annotated[float, Field(gt=0, description="spread of global neurons")] = 1.0
    sweeps: Annotated[int, Field(ge=0, description="times that every client is matched anew")] = 5
    grow: Annotated[bool, Field(description="deploy the grown network, or its most shared neurons")] = True

    needs_channels: ClassVar[bool] = True
    acting: ClassVar[Sequence[Acts]] = (
        *OneShot.acting,
        Acts("weights", "options", given={"rescale": (True,)}),
        Acts("reestimate", "options", given={"grow": (False,), "distil": ("server", "generated")}),
    )

    def deploys_another(self) -> bool:
        """The grown network, if that is wanted."""
        return self.grow

    def needs(self) -> tuple[str, ...]:
        """Counts of classes."""
        return ("classes",)

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Matches from the last hidden layer to the first."""
        process = Process(self.gamma, self.sigma, self.sigma0, self.sweeps)
        return matched_network(uploads, context, "backward", process, self.grow)

    def deploy(self, packet: Packet, benches: Benches) -> Workbench:
        """The network of the packet's widths."""
        return bench_of(packet, benches)


def matched_network(
    uploads: Sequence[Upload], context: Context, direction: Direction, process: Process, wider: bool
) -> Merged:
    """Matches, and gives the grown network and the one of the original widths."""
    wiring = context.server.wiring
    found = grow(wiring, uploads, direction, process, context.rng)
    metrics: Metrics = {f"units/{name}": float(len(counts)) for name, counts in found.counts.items()}
    return Merged(cut(found, wiring), metrics, found.model if wider else None, homes(found, wiring))


def bench_of(packet: Packet, benches: Benches) -> Workbench:
    """A workbench of the widths that a packet's tensors have, with their values."""
    shapes = {name: tuple(t.shape) for name, t in packet.tensors.items()}
    if all(tuple(t.shape) == shapes.get(n) for n, t in benches.whole.tree().items()):
        benches.whole.load(packet.tensors)
        return benches.whole
    bench = benches.smaller(("wider", *shapes.items()), lambda module: widened(module, shapes))
    bench.load(packet.tensors)
    return bench
