"""One row a method: what the shared tests need to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests import tiny
from tests.recsys import small

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.task import Task
from fedfi.recsys.colr import CoLR
from fedfi.recsys.fedcia import FedCIA
from fedfi.recsys.feddae import FedDAE
from fedfi.recsys.fedmf import FedMF
from fedfi.recsys.fedncf import FedNCF
from fedfi.recsys.fedrap import FedRAP
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.gpfedrec import GPFedRec
from fedfi.recsys.itemknn import ItemKNN
from fedfi.recsys.mf import MF
from fedfi.recsys.neumf import NeuMF
from fedfi.recsys.pfedrec import PFedRec
from fedfi.recsys.popularity import Popularity
from fedfi.recsys.random import Random
from fedfi.submodel.fedfibos import FedFIbOS

HALF = {"participation": 0.5}
MIX = {1.0: 0.25, 0.5: 0.25, 0.25: 0.5}
FULL = {1.0: 1.0}
PUBLISHED = dict(FedFIbOS.presets["as-published"])


@dataclass(frozen=True)
class Row:
    """A method under the shared tests.

    Attributes:
        algorithm: A configuration that exercises it on `tiny.small`.
        identity: A configuration that must equal `like` to the bit, or None.
        like: By default FedAvg with uniform weights.
        first_round: Weights `[2]` after one round of `tiny.by_hand`, derived at the row, or None.
        by_hand: The configuration that `first_round` is of.
        task: Makes the task that `algorithm` is exercised on.
    """

    algorithm: Algorithm
    identity: Algorithm | None = None
    like: Algorithm = FedAvg(participation=0.5, weights="uniform")  # noqa: RUF009 - frozen
    first_round: list[float] | None = None
    by_hand: Algorithm | None = None
    task: Callable[[], Task] = tiny.small


ROWS: dict[str, Row] = {
    # c0 ends at (1/2, -1/2) and c1 at (-1, 1); the mean is (-1/4, 1/4)
    "fedavg": Row(FedAvg(**HALF), FedAvg(**HALF, weights="uniform"), first_round=[-0.25, 0.25], by_hand=FedAvg()),
    # the proximal term is zero at the start, so the first step is that of FedAvg
    "fedprox": Row(
        FedProx(**HALF, proximal=0.1),
        FedProx(**HALF, proximal=0.0, weights="uniform"),
        first_round=[-0.25, 0.25],
        by_hand=FedProx(proximal=5.0),
    ),
    # |x_0| = (0, 0): the tie goes to the lower index, so both clients hold w_0 alone, at 1/2 and -1; w_1 stays 0
    "fedfibos": Row(
        FedFIbOS(**HALF, capacities=MIX),
        FedFIbOS(**HALF, capacities=FULL),
        first_round=[-0.25, 0.0],
        by_hand=FedFIbOS(participation=1, capacities={0.5: 1.0}),
    ),
    # the same mask; plain division by two clients that both hold w_0; off the mask x = 0, which shrinks to 0
    "fedfibos-as-published": Row(
        FedFIbOS(**HALF, capacities=MIX, **PUBLISHED),
        FedFIbOS(**HALF, capacities=FULL, **PUBLISHED),
        first_round=[-0.25, 0.0],
        by_hand=FedFIbOS(participation=1, capacities={0.5: 1.0}, **PUBLISHED),
    ),
    "fedfibos-active": Row(FedFIbOS(**HALF, capacities=MIX, fisher="active", fisher_bits=8)),
    "fedfibos-global": Row(FedFIbOS(**HALF, capacities=MIX, fisher="global", score="fisher2x2")),
    "fedfibos-example": Row(
        FedFIbOS(**HALF, capacities=MIX, fisher_samples="example", warm_start="rescale", threshold_factor=True),
        FedFIbOS(**HALF, capacities=FULL, blend=0.5, scope="layer", warm_start="rescale"),
    ),
    "fedrkg": Row(FedRKG(**HALF, interval=1), task=small.task),
    "fedmf": Row(FedMF(**HALF), task=small.task),
    "fedncf": Row(FedNCF(**HALF), task=small.task),
    "pfedrec": Row(PFedRec(**HALF), task=small.task),
    "mf": Row(MF(**HALF), task=small.task),
    "neumf": Row(NeuMF(**HALF), task=small.task),
    "itemknn": Row(ItemKNN(**HALF), task=small.task),
    "popularity": Row(Popularity(**HALF), task=small.task),
    "random": Row(Random(**HALF), task=small.task),
    "gpfedrec": Row(GPFedRec(**HALF), task=small.task),
    "colr": Row(CoLR(**HALF, rank=2), task=small.task),
    "fedrap": Row(FedRAP(**HALF), task=small.task),
    "fedcia": Row(FedCIA(**HALF), task=small.task),
    "feddae": Row(FedDAE(**HALF), task=small.task),
}
