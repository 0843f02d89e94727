"""fedfi: what each client of an uneven federation trains, shares, hides and takes back.

Everything public is here, every method's class too; each name is loaded at its first use, so that `import fedfi` is
quick and loads no optional dependency. Where methods are, `fedfi.registry` knows.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfi.averaging.fedavg import FedAvg
    from fedfi.averaging.fedprox import FedProx
    from fedfi.averaging.server import Averaging
    from fedfi.data import ClientData, Dataset, Examples, FederatedData, Inputs, federate, load
    from fedfi.data.interactions import Ratings, leave_one_out
    from fedfi.data.ratings import ClientRatings, RatingsData
    from fedfi.data.recommendation import load_ratings
    from fedfi.engines.local import LocalEngine
    from fedfi.errors import InputError, RunError
    from fedfi.federation.algorithm import Algorithm, EvaluatesClients, Failure, HasLevels, Metrics, Reply, method
    from fedfi.federation.client import Client, Memory
    from fedfi.federation.cohort import Cohort
    from fedfi.federation.engine import Engine
    from fedfi.federation.evaluation import Evaluate, evaluate_model
    from fedfi.federation.loop import RunResult
    from fedfi.federation.packet import Layout, Packet, Tree
    from fedfi.federation.run import run
    from fedfi.federation.task import Task, Training
    from fedfi.federation.training import Trained, train_locally
    from fedfi.federation.workbench import Workbench, fresh_workbench
    from fedfi.models import InputSpec, build
    from fedfi.oneshot.average import Average
    from fedfi.oneshot.bestclient import BestClient
    from fedfi.oneshot.dense import DENSE
    from fedfi.oneshot.ensemble import Ensemble
    from fedfi.oneshot.fedbens import FedBEns
    from fedfi.oneshot.fedfiot import FedFiOT
    from fedfi.oneshot.fedfisher import FedFisher
    from fedfi.oneshot.fedma import FedMA
    from fedfi.oneshot.fishermerge import FisherMerge
    from fedfi.oneshot.mergedfile import read_merged
    from fedfi.oneshot.networks import MergedNetwork, measure, merge
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
    from fedfi.submodel.fedbrb import FedBRB
    from fedfi.submodel.feddropout import FederatedDropout
    from fedfi.submodel.fedfibos import FedFIbOS
    from fedfi.submodel.fedlagc import FedLAGC
    from fedfi.submodel.fedrolex import FedRolex
    from fedfi.submodel.fiarse import FIARSE
    from fedfi.submodel.fjord import FjORD
    from fedfi.submodel.heterofl import HeteroFL
    from fedfi.submodel.magnitude import Magnitude

__version__ = "0.1.0"

_HOMES = {
    "Algorithm": "federation.algorithm",
    "Averaging": "averaging.server",
    "Client": "federation.client",
    "ClientData": "data",
    "ClientRatings": "data.ratings",
    "Cohort": "federation.cohort",
    "Dataset": "data",
    "Engine": "federation.engine",
    "Evaluate": "federation.evaluation",
    "EvaluatesClients": "federation.algorithm",
    "Examples": "data",
    "Failure": "federation.algorithm",
    "FederatedData": "data",
    "HasLevels": "federation.algorithm",
    "InputError": "errors",
    "InputSpec": "models",
    "Inputs": "data",
    "Layout": "federation.packet",
    "LocalEngine": "engines.local",
    "Memory": "federation.client",
    "MergedNetwork": "oneshot.networks",
    "Metrics": "federation.algorithm",
    "Packet": "federation.packet",
    "Ratings": "data.interactions",
    "RatingsData": "data.ratings",
    "Reply": "federation.algorithm",
    "RunError": "errors",
    "RunResult": "federation.loop",
    "Task": "federation.task",
    "Trained": "federation.training",
    "Training": "federation.task",
    "Tree": "federation.packet",
    "Workbench": "federation.workbench",
    "build": "models",
    "evaluate_model": "federation.evaluation",
    "federate": "data",
    "leave_one_out": "data.interactions",
    "load": "data",
    "load_ratings": "data.recommendation",
    "fresh_workbench": "federation.workbench",
    "measure": "oneshot.networks",
    "merge": "oneshot.networks",
    "method": "federation.algorithm",
    "read_merged": "oneshot.mergedfile",
    "run": "federation.run",
    "train_locally": "federation.training",
}

__all__ = [
    "APFL",
    "DENSE",
    "FIARSE",
    "MF",
    "PFNM",
    "TIES",
    "Algorithm",
    "Average",
    "Averaging",
    "BestClient",
    "Client",
    "ClientData",
    "ClientRatings",
    "CoLR",
    "Cohort",
    "Dataset",
    "Ditto",
    "Encrypted",
    "Engine",
    "Ensemble",
    "Evaluate",
    "EvaluatesClients",
    "Examples",
    "Failure",
    "FedALA",
    "FedAvg",
    "FedBABU",
    "FedBEns",
    "FedBRB",
    "FedCIA",
    "FedDAE",
    "FedDPA",
    "FedFIHE",
    "FedFIbOS",
    "FedFiOT",
    "FedFisher",
    "FedLAGC",
    "FedMA",
    "FedMF",
    "FedMLHE",
    "FedNCF",
    "FedPer",
    "FedProx",
    "FedRAP",
    "FedRKG",
    "FedRep",
    "FedRolex",
    "FederatedData",
    "FederatedDropout",
    "FineTune",
    "FisherMerge",
    "FjORD",
    "GPFedRec",
    "GitReBasin",
    "HEFedAvg",
    "HasLevels",
    "HeteroFL",
    "InputError",
    "InputSpec",
    "Inputs",
    "ItemKNN",
    "LGFedAvg",
    "Layout",
    "Local",
    "LocalEngine",
    "Magnitude",
    "MaskCrypt",
    "Memory",
    "MergedNetwork",
    "Metrics",
    "NeuMF",
    "OTFusion",
    "PFedMe",
    "PFedRec",
    "Packet",
    "PerFedAvg",
    "Popularity",
    "Private",
    "Random",
    "Ratings",
    "RatingsData",
    "RegMean",
    "Reply",
    "RunError",
    "RunResult",
    "Task",
    "TaskArithmetic",
    "Trained",
    "Training",
    "Tree",
    "WBFusion",
    "Workbench",
    "build",
    "evaluate_model",
    "federate",
    "fresh_workbench",
    "leave_one_out",
    "load",
    "load_ratings",
    "measure",
    "merge",
    "method",
    "read_merged",
    "run",
    "train_locally",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is not None:
        return getattr(importlib.import_module(f"fedfi.{home}"), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'fedfi' has no attribute {name!r}")
    if _is_module(name):
        raise AttributeError(f"module 'fedfi' has no attribute {name!r} yet; write `import fedfi.{name}`")
    methods = importlib.import_module("fedfi.registry").classes()
    if name not in methods:
        raise AttributeError(f"module 'fedfi' has no attribute {name!r}; {_hint(name)}")
    module, _, _ = methods[name].partition(":")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_module(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(f"fedfi.{name}") is not None


def _hint(name: str) -> str:
    """What was meant, by the names here and by those that methods have in files."""
    nearest = importlib.import_module("fedfi.errors").nearest
    entries = importlib.import_module("fedfi.registry").entries()
    known = {_letters(key): entry.target.partition(":")[2] for key, entry in entries.items()}
    known |= {_letters(public): public for public in __all__}
    near = nearest(_letters(name), known)
    return f"did you mean fedfi.{known[near[0]]}?" if near else "dir(fedfi) lists all that it has"


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
