"""One row a method: what the shared tests need to know of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests import tiny
from tests.recsys import small

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.task import Task
from fedfi.oneshot.average import Average
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
from fedfi.personal.apfl import APFL
from fedfi.personal.ditto import Ditto
from fedfi.personal.encrypted import Encrypted
from fedfi.personal.fedala import FedALA
from fedfi.personal.fedbabu import FedBABU
from fedfi.personal.feddpa import FedDPA
from fedfi.personal.fedfihe import FedFIHE
from fedfi.personal.fedmlhe import FedMLHE
from fedfi.personal.fedper import FedPer
from fedfi.personal.fedrep import FedRep
from fedfi.personal.finetune import FineTune
from fedfi.personal.hefedavg import HEFedAvg
from fedfi.personal.lgfedavg import LGFedAvg
from fedfi.personal.local import Local
from fedfi.personal.maskcrypt import MaskCrypt
from fedfi.personal.perfedavg import PerFedAvg
from fedfi.personal.pfedme import PFedMe
from fedfi.personal.private import Private
from fedfi.privacy import accounting
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
from fedfi.submodel.fedbrb import FedBRB
from fedfi.submodel.feddropout import FederatedDropout
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.fedlagc import FedLAGC
from fedfi.submodel.fedrolex import FedRolex
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.fjord import FjORD
from fedfi.submodel.heterofl import HeteroFL
from fedfi.submodel.magnitude import Magnitude

HALF = {"participation": 0.5}
MIX = {1.0: 0.25, 0.5: 0.25, 0.25: 0.5}
FULL = {1.0: 1.0}
UNIFORM = {**HALF, "weights": "uniform"}
CLEAR = {"enabled": False, "packet_size": 8}
EXACT = {"upload_bits": 32}
# One-shot methods, by hand: c0 ends at (1/2, -1/2) with x = 1 of class 0, c1 at (-1, 1) with x = 2 of class 1. There
# p = 1 / (1 + e^-1) and 1 / (1 + e^-4), so the gradients of the loss are (-1, 1) / (1 + e) and (2, -2) / (1 + e^4).
G0, G1 = 1 / (1 + math.e), 2 / (1 + math.e**4)
ALL_ROUND = dict(FedFIbOS.presets["all-round"])
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
        silent: Its replies hold no tensor, so that none can be wrong.
        private: It counts epsilon, which needs the extra `dp`.
    """

    algorithm: Algorithm
    identity: Algorithm | None = None
    like: Algorithm = FedAvg(participation=0.5, weights="uniform")  # noqa: RUF009 - frozen
    first_round: list[float] | None = None
    by_hand: Algorithm | None = None
    task: Callable[[], Task] = tiny.small
    silent: bool = False
    private: bool = False

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Skips a row whose extra is not there."""
        absent = self.private and not accounting.available()
        return [pytest.mark.skip(reason="the extra 'dp' is not installed, or too old")] if absent else []


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
    "fedfibos-all-round": Row(
        FedFIbOS(**HALF, capacities=MIX, **ALL_ROUND), FedFIbOS(**HALF, capacities=FULL, **ALL_ROUND)
    ),
    "fedfibos-global": Row(FedFIbOS(**HALF, capacities=MIX, fisher="global", score="fisher2x2")),
    "fedfibos-example": Row(
        FedFIbOS(**HALF, capacities=MIX, fisher_samples="example", warm_start="rescale", threshold_factor=True),
        FedFIbOS(**HALF, capacities=FULL, blend=0.5, scope="layer", warm_start="rescale"),
    ),
    # the threshold is |w_0| = 0, where the factor is 1; both clients hold w_0, which the tie gives to the lower index
    "fiarse": Row(
        FIARSE(**HALF, capacities=MIX),
        FIARSE(**HALF, capacities=FULL),
        first_round=[-0.25, 0.0],
        by_hand=FIARSE(participation=1, capacities={0.5: 1.0}),
    ),
    "fiarse-fixed": Row(
        FIARSE(**HALF, capacities=MIX, reevaluate=False, scope="layer", level_mode="dynamic", ratio="width"),
        FIARSE(**HALF, capacities=FULL, reevaluate=False),
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
    # a single layer has no channels to cut, as its inputs and logits stay, so clients train it whole, as FedAvg's do
    "heterofl": Row(
        HeteroFL(**HALF, capacities=MIX, ratio="width"),
        HeteroFL(**HALF, capacities=FULL, scaler=False, masked_loss=False, label_rows=False),
        first_round=[-0.25, 0.25],
        by_hand=HeteroFL(participation=1, capacities=FULL, masked_loss=False, label_rows=False),
    ),
    "fedrolex": Row(
        FedRolex(**HALF, capacities=MIX, ratio="width", level_mode="dynamic"),
        FedRolex(**HALF, capacities=FULL, scaler=False, masked_loss=False, label_rows=False),
    ),
    "feddropout": Row(
        FederatedDropout(**HALF, capacities=MIX, ratio="width"), FederatedDropout(**HALF, capacities=FULL)
    ),
    # all is zero, so the one layer's budget is one entry, of equal ones the lower; the threshold 0 leaves gradients be
    "fedlagc": Row(
        FedLAGC(**HALF, capacities=MIX, keep_edges=False),
        FedLAGC(**HALF, capacities=FULL, correction="none"),
        first_round=[-0.25, 0.0],
        by_hand=FedLAGC(participation=1, capacities={0.5: 1.0}, keep_edges=False),
    ),
    # the one layer reads the example's inputs and makes the classes, so there is nothing to cut
    "fedbrb": Row(
        FedBRB(**HALF, capacities=MIX, broadcast_rate=0.25, scaler=True),
        FedBRB(**HALF, capacities=FULL),
        first_round=[-0.25, 0.25],
        by_hand=FedBRB(participation=1, capacities=FULL),
    ),
    "fjord": Row(
        FjORD(**HALF, capacities=MIX, distillation=True, distillation_weight=0.5, temperature=2.0),
        FjORD(**HALF, capacities=FULL, weights="uniform"),
        first_round=[-0.25, 0.25],
        by_hand=FjORD(participation=1, capacities=FULL),
    ),
    # the server's model stays (0, 0): nothing is shared
    "local": Row(Local(**HALF), first_round=[0.0, 0.0], by_hand=Local(), silent=True),
    # the global model of these is FedAvg's
    "finetune": Row(FineTune(**HALF), FineTune(**UNIFORM), first_round=[-0.25, 0.25], by_hand=FineTune()),
    "ditto": Row(Ditto(**HALF), Ditto(**UNIFORM), first_round=[-0.25, 0.25], by_hand=Ditto()),
    "apfl": Row(APFL(**HALF), APFL(**UNIFORM), first_round=[-0.25, 0.25], by_hand=APFL()),
    # the one layer is the head, so nothing but an empty head shares it
    "fedper": Row(FedPer(**HALF), FedPer(**UNIFORM, head=[]), first_round=[0.0, 0.0], by_hand=FedPer()),
    "fedrep": Row(FedRep(**HALF), FedRep(**UNIFORM, head=[]), first_round=[-0.25, 0.25], by_hand=FedRep(head=[])),
    "fedbabu": Row(FedBABU(**HALF), FedBABU(**UNIFORM, head=[]), first_round=[0.0, 0.0], by_hand=FedBABU()),
    "lg-fedavg": Row(
        LGFedAvg(**HALF),
        LGFedAvg(**UNIFORM, head=["0", "1", "3"]),
        first_round=[-0.25, 0.25],
        by_hand=LGFedAvg(),
    ),
    # lambda = r = 1, one inner step: c0's personal model is (1/4, -1/4), c1's (-1/2, 1/2); w moves half the way
    "pfedme": Row(PFedMe(**HALF), first_round=[-0.0625, 0.0625], by_hand=PFedMe(penalty=1.0, inner_steps=1, rate=0.5)),
    # after the inner step c0 stands at a = 1/2, with gradient -1/(1 + e); c1 at a = -1, with 2/(1 + e^4); rate 1
    "perfedavg": Row(
        PerFedAvg(**HALF),
        first_round=[(0.26894142 - 2 * 0.01798621) / 2, -(0.26894142 - 2 * 0.01798621) / 2],
        by_hand=PerFedAvg(),
    ),
    "perfedavg-hessian-free": Row(PerFedAvg(**HALF, order="hessian-free")),
    "fedala": Row(FedALA(**HALF), FedALA(**UNIFORM, layers=0), first_round=[-0.25, 0.25], by_hand=FedALA()),
    "feddpa": Row(
        FedDPA(**HALF),
        FedDPA(**UNIFORM, threshold=1.0, own_penalty=0.0, shared_penalty=0.0),
        first_round=[-0.25, 0.25],
        by_hand=FedDPA(threshold=1.0, own_penalty=0.0, shared_penalty=0.0),
    ),
    # nothing is trained at the server; ciphertexts differ from run to run, so the shared rows run in the clear
    "fedfihe": Row(
        FedFIHE(**HALF, encryption=CLEAR), first_round=[0.0, 0.0], by_hand=FedFIHE(encryption=CLEAR), silent=True
    ),
    "fedfihe-two-phases": Row(FedFIHE(**HALF, phases="two", encryption=CLEAR), silent=True),
    "fedfihe-encrypted-votes": Row(
        FedFIHE(**HALF, phases="two", votes="encrypted", spare=0, encryption=CLEAR), silent=True
    ),
    "he-fedavg": Row(HEFedAvg(**HALF, encryption=CLEAR), silent=True),
    "fedml-he": Row(FedMLHE(**HALF, encryption=CLEAR), silent=True),
    "maskcrypt": Row(MaskCrypt(**HALF, encryption=CLEAR), silent=True),
    # clipped far beyond the updates, with noise of 1e-7: FedAvg's mean
    "private": Row(
        Private(**HALF, algorithm=FedAvg(weights="uniform"), clip=0.1, noise=0.5),
        first_round=[-0.25, 0.25],
        by_hand=Private(algorithm=FedAvg(weights="uniform"), clip=100.0, noise=1e-9),
        private=True,
    ),
    "private-at-clients": Row(
        Private(**HALF, algorithm=FedPer(weights="uniform"), where="client", clip=0.1, epsilon=20.0, rounds=4),
        private=True,
    ),
    "private-fedfibos": Row(
        Private(
            **HALF,
            algorithm=FedFIbOS(capacities=MIX, aggregation="plain", first_mask="magnitude"),
            clip=0.5,
            noise=0.1,
        ),
        private=True,
    ),
    "encrypted": Row(Encrypted(**HALF, algorithm=FedProx(proximal=0.1), encryption=CLEAR), silent=True),
    "encrypted-ditto": Row(Encrypted(**HALF, algorithm=Ditto(), encryption=CLEAR), silent=True),
    "encrypted-fedfibos": Row(
        Encrypted(**HALF, algorithm=FedFIbOS(capacities=MIX), encryption={**CLEAR, "clip": 32}), silent=True
    ),
    "encrypted-fedrkg": Row(
        Encrypted(**HALF, algorithm=FedRKG(interval=1), encryption={"enabled": False, "clip": 64.0}),
        task=small.task,
        silent=True,
    ),
    "encrypted-private": Row(
        Encrypted(
            **HALF,
            algorithm=Private(algorithm=FedAvg(weights="uniform"), where="client", clip=0.1, noise=0.5),
            encryption=CLEAR,
        ),
        silent=True,
        private=True,
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
    "fedfisher-diagonal": Row(FedFisher(**HALF, steps=6, curvature="diagonal", fisher="observed")),
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
    "average": Row(Average(**HALF), first_round=[-0.25, 0.25], by_hand=Average(**EXACT)),
    "average-improved": Row(
        Average(**HALF, class_prior=0.5, tune_weights=1, rescale=True, distil="server", distil_steps=3),
        task=lambda: tiny.with_validation(tiny.small()),
    ),
    "fedfiot-distilled": Row(FedFiOT(**HALF, class_prior=1.0, distil="generated", distil_steps=1)),
    "ensemble": Row(Ensemble(**HALF)),
    "dense": Row(DENSE(**HALF, stages=1, noise=3, batch=8, generator_steps=2, steps=3)),
    "fedbens": Row(FedBEns(**HALF, models=2, steps=4)),
    "fedbens-diag-full": Row(
        FedBEns(**HALF, models=2, steps=4, curvature="diag-full", fisher="observed", upload_bits=16)
    ),
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
    "fedrkg": Row(FedRKG(**HALF, interval=1), task=small.task),
    "fedmf": Row(FedMF(**HALF), task=small.task),
    "fedncf": Row(FedNCF(**HALF), task=small.task),
    "pfedrec": Row(PFedRec(**HALF), task=small.task),
    "mf": Row(MF(**HALF), task=small.task),
    "neumf": Row(NeuMF(**HALF), task=small.task),
    "itemknn": Row(ItemKNN(**HALF), task=small.task),
    "popularity": Row(Popularity(**HALF), task=small.task),
    "gpfedrec": Row(GPFedRec(**HALF), task=small.task),
    "colr": Row(CoLR(**HALF, rank=2), task=small.task),
    "fedrap": Row(FedRAP(**HALF), task=small.task),
    "fedcia": Row(FedCIA(**HALF), task=small.task),
    "feddae": Row(FedDAE(**HALF), task=small.task),
}
