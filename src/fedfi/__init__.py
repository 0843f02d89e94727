"""fedfi: what each client of an uneven federation trains, shares, hides and takes back.

Everything public is here; each name is loaded at its first use, so that `import fedfi` is quick and loads no
optional dependency.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfi.averaging.fedavg import FedAvg
    from fedfi.averaging.fedprox import FedProx
    from fedfi.averaging.server import Averaging
    from fedfi.data import ClientData, Dataset, Examples, FederatedData, federate, load
    from fedfi.data.interactions import Ratings, leave_one_out
    from fedfi.data.ratings import ClientRatings, RatingsData
    from fedfi.data.recommendation import load_ratings
    from fedfi.engines.local import LocalEngine
    from fedfi.errors import InputError, RunError
    from fedfi.federation.algorithm import (
        Algorithm,
        EvaluatesClients,
        Failure,
        HasLevels,
        Metrics,
        Reply,
        method,
    )
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
    from fedfi.oneshot.fedfiot import FedFiOT
    from fedfi.personal.encrypted import Encrypted
    from fedfi.personal.fedfihe import FedFIHE
    from fedfi.personal.private import Private
    from fedfi.recsys.fedrkg import FedRKG
    from fedfi.submodel.fedfibos import FedFIbOS

__version__ = "0.1.0"

_HOMES = {
    "Algorithm": "federation.algorithm",
    "Averaging": "averaging.server",
    "Client": "federation.client",
    "ClientData": "data",
    "ClientRatings": "data.ratings",
    "Cohort": "federation.cohort",
    "Dataset": "data",
    "Encrypted": "personal.encrypted",
    "Engine": "federation.engine",
    "Evaluate": "federation.evaluation",
    "EvaluatesClients": "federation.algorithm",
    "Examples": "data",
    "Failure": "federation.algorithm",
    "FedAvg": "averaging.fedavg",
    "FedFIHE": "personal.fedfihe",
    "FedFIbOS": "submodel.fedfibos",
    "FedFiOT": "oneshot.fedfiot",
    "FedProx": "averaging.fedprox",
    "FedRKG": "recsys.fedrkg",
    "FederatedData": "data",
    "HasLevels": "federation.algorithm",
    "InputError": "errors",
    "InputSpec": "models",
    "Layout": "federation.packet",
    "LocalEngine": "engines.local",
    "Memory": "federation.client",
    "Metrics": "federation.algorithm",
    "Packet": "federation.packet",
    "Private": "personal.private",
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
    "method": "federation.algorithm",
    "run": "federation.run",
    "train_locally": "federation.training",
}

__all__ = [
    "Algorithm",
    "Averaging",
    "Client",
    "ClientData",
    "ClientRatings",
    "Cohort",
    "Dataset",
    "Encrypted",
    "Engine",
    "Evaluate",
    "EvaluatesClients",
    "Examples",
    "Failure",
    "FedAvg",
    "FedFIHE",
    "FedFIbOS",
    "FedFiOT",
    "FedProx",
    "FedRKG",
    "FederatedData",
    "HasLevels",
    "InputError",
    "InputSpec",
    "Layout",
    "LocalEngine",
    "Memory",
    "Metrics",
    "Packet",
    "Private",
    "Ratings",
    "RatingsData",
    "Reply",
    "RunError",
    "RunResult",
    "Task",
    "Trained",
    "Training",
    "Tree",
    "Workbench",
    "build",
    "evaluate_model",
    "federate",
    "fresh_workbench",
    "leave_one_out",
    "load",
    "load_ratings",
    "method",
    "run",
    "train_locally",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedfi' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedfi.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
