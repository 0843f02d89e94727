"""One row a method: what the shared tests need to know of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.federation.algorithm import Algorithm
from fedfi.oneshot.bestclient import BestClient
from fedfi.oneshot.dense import DENSE
from fedfi.oneshot.ensemble import Ensemble
from fedfi.oneshot.fedbens import FedBEns
from fedfi.oneshot.fedfiot import FedFiOT
from fedfi.oneshot.fedfisher import FedFisher
from fedfi.oneshot.fedma import FedMA
from fedfi.oneshot.fishermerge import FisherMerge
from fedfi.oneshot.otfusion import OTFusion
from fedfi.oneshot.pfnm import PFNM
from fedfi.oneshot.rebasin import GitReBasin
from fedfi.oneshot.regmean import RegMean
from fedfi.oneshot.taskarithmetic import TaskArithmetic
from fedfi.oneshot.ties import TIES
from fedfi.oneshot.wbfusion import WBFusion
from fedfi.submodel.feddropout import FederatedDropout
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.fedrolex import FedRolex
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.heterofl import HeteroFL
from fedfi.submodel.magnitude import Magnitude

HALF = {"participation": 0.5}
MIX = {1.0: 0.25, 0.5: 0.25, 0.25: 0.5}
FULL = {1.0: 1.0}
PUBLISHED = dict(FedFIbOS.presets["as-published"])
EXACT = {"upload_bits": 32}

# One-shot methods, by hand: c0 ends at (1/2, -1/2) with x = 1 of class 0, c1 at (-1, 1) with x = 2 of class 1. There
# p = 1 / (1 + e^-1) and 1 / (1 + e^-4), so the gradients of the loss are (-1, 1) / (1 + e) and (2, -2) / (1 + e^4).
G0, G1 = 1 / (1 + math.e), 2 / (1 + math.e**4)


@dataclass(frozen=True)
class Row:
    """A method under the shared tests.

    Attributes:
        algorithm: A configuration that exercises it on `tiny.small`.
        identity: A configuration that must equal `like` to the bit, or None.
        like: By default FedAvg with uniform weights.
        first_round: Weights `[2]` after one round of `tiny.by_hand`, derived at the row, or None.
        by_hand: The configuration that `first_round` is of.
    """

    algorithm: Algorithm
    identity: Algorithm | None = None
    like: Algorithm = FedAvg(participation=0.5, weights="uniform")  # noqa: RUF009 - frozen
    first_round: list[float] | None = None
    by_hand: Algorithm | None = None


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
    # the threshold is |w_0| = 0, where the factor is 1; both clients hold w_0, which the tie gives to the lower index
    "fiarse": Row(
        FIARSE(**HALF, capacities=MIX),
        FIARSE(**HALF, capacities=FULL, threshold_factor=False),
        first_round=[-0.25, 0.0],
        by_hand=FIARSE(participation=1, capacities={0.5: 1.0}),
    ),
    "fiarse-fixed": Row(
        FIARSE(**HALF, capacities=MIX, reevaluate=False, scope="layer", level_mode="dynamic", ratio="width"),
        FIARSE(**HALF, capacities=FULL, threshold_factor=False, reevaluate=False),
    ),
    "magnitude": Row(
        Magnitude(**HALF, capacities=MIX, floor=0.5),
        Magnitude(**HALF, capacities=FULL),
        first_round=[-0.25, 0.0],
        by_hand=Magnitude(participation=1, capacities={0.5: 1.0}),
    ),
    "random": Row(
        Magnitude(**HALF, capacities=MIX, score="random"), Magnitude(**HALF, capacities=FULL, score="random")
    ),
    # a single layer has no channels to cut (its inputs and logits stay), so clients train it whole, as FedAvg's do
    "heterofl": Row(
        HeteroFL(**HALF, capacities=MIX, ratio="width"),
        HeteroFL(**HALF, capacities=FULL, scaler=False, masked_loss=False, label_rows=False),
        first_round=[-0.25, 0.25],
        by_hand=HeteroFL(participation=1, ratio="width", capacities={0.5: 1.0}, masked_loss=False, label_rows=False),
    ),
    "fedrolex": Row(
        FedRolex(**HALF, capacities=MIX, ratio="width", level_mode="dynamic"),
        FedRolex(**HALF, capacities=FULL, scaler=False, masked_loss=False, label_rows=False),
    ),
    "feddropout": Row(
        FederatedDropout(**HALF, capacities=MIX, ratio="width"), FederatedDropout(**HALF, capacities=FULL)
    ),
    # F = G^2: (F0/2 - F1) / (F0 + F1); of a single layer there is nothing to align
    "fishermerge": Row(
        FisherMerge(**HALF, fisher="observed"),
        first_round=[(G0**2 / 2 - G1**2) / (G0**2 + G1**2), -(G0**2 / 2 - G1**2) / (G0**2 + G1**2)],
        by_hand=FisherMerge(fisher="observed", normalize=False, floor=0.0, **EXACT),
    ),
    "fishermerge-exact": Row(FisherMerge(**HALF)),
    # rho = 1/2: F^rho = G, equal shares, no damping to speak of
    "fedfiot": Row(
        FedFiOT(**HALF),
        first_round=[(G0 / 2 - G1) / (G0 + G1), -(G0 / 2 - G1) / (G0 + G1)],
        by_hand=FedFiOT(rho=(0.5,), damping=(1e-12,), **EXACT),
    ),
    "fedfiot-as-published": Row(FedFiOT(**HALF, **FedFiOT.presets["as-published"])),
    "fedfiot-blocks": Row(FedFiOT(**HALF, order="blocks", initialization="independent", measure_on=4)),
    # nothing to align, so the mean
    "otfusion": Row(OTFusion(**HALF), first_round=[-0.25, 0.25], by_hand=OTFusion(**EXACT)),
    "wbfusion": Row(WBFusion(**HALF), first_round=[-0.25, 0.25], by_hand=WBFusion(**EXACT)),
    "rebasin": Row(GitReBasin(**HALF), first_round=[-0.25, 0.25], by_hand=GitReBasin(**EXACT)),
    # G = x^2 = 1 and 4: (1/2 - 4) / 5
    "regmean": Row(RegMean(**HALF), first_round=[-0.7, 0.7], by_hand=RegMean(**EXACT)),
    "fedfisher": Row(FedFisher(**HALF, steps=6)),
    "fedfisher-diagonal": Row(FedFisher(**HALF, steps=6, curvature="diagonal")),
    # one of two coordinates is kept, the first: (1/2, 0) and (-1, 0); the sum is negative, so c1's alone
    "ties": Row(TIES(**HALF), first_round=[-1.0, 0.0], by_hand=TIES(**EXACT)),
    "task-arithmetic": Row(
        TaskArithmetic(**HALF),
        TaskArithmetic(**HALF, **EXACT, weights="uniform"),
        first_round=[-0.25, 0.25],
        by_hand=TaskArithmetic(**EXACT),
    ),
    # both hold one example, so the first
    "best-client": Row(BestClient(**HALF), first_round=[0.5, -0.5], by_hand=BestClient(**EXACT)),
    "ensemble": Row(Ensemble(**HALF)),
    "dense": Row(DENSE(**HALF, stages=1, noise=3, batch=8, generator_steps=2, steps=3)),
    "fedbens": Row(FedBEns(**HALF, models=2, steps=4)),
    "fedbens-diag-full": Row(FedBEns(**HALF, models=2, steps=4, curvature="diag-full", upload_bits=16)),
    # a row of the last layer is weighted by who has the class: 1.001 of 1.002 (each count plus a thousandth)
    "pfnm": Row(
        PFNM(**HALF, grow=False),
        first_round=[(0.5 * 1.001 - 1 * 0.001) / 1.002, (1 * 1.001 - 0.5 * 0.001) / 1.002],
        by_hand=PFNM(**EXACT),
    ),
    "fedma": Row(
        FedMA(**HALF, grow=False),
        first_round=[(0.5 * 1.001 - 1 * 0.001) / 1.002, (1 * 1.001 - 0.5 * 0.001) / 1.002],
        by_hand=FedMA(**EXACT),
    ),
}
