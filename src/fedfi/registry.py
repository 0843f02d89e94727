"""Every method by name. A method is loaded when it is asked for, so that listing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedfi.errors import InputError, unknown
from fedfi.importing import import_callable
from fedfi.validation import check_decorated


@dataclass(frozen=True)
class Entry:
    """Where a method lives and where it comes from.

    Attributes:
        target: ``"module:Class"``.
        family: Which question of a federated round it answers.
        summary: One line.
        paper: Citation.
    """

    target: str
    family: str
    summary: str
    paper: str


_ENTRIES = {
    "fedavg": Entry(
        "fedfi.averaging.fedavg:FedAvg",
        "averaging",
        "Local training, weighted mean of the updates",
        "McMahan et al., AISTATS 2017, arXiv:1602.05629",
    ),
    "fedprox": Entry(
        "fedfi.averaging.fedprox:FedProx",
        "averaging",
        "FedAvg with a proximal term that keeps clients near the global model",
        "Li et al., MLSys 2020, arXiv:1812.06127",
    ),
    "fedfibos": Entry(
        "fedfi.submodel.fedfibos:FedFIbOS",
        "submodel",
        "Submodels of the parameters with the largest Fisher information",
        "FedFIbOS, arXiv:2609.19559",
    ),
    "fiarse": Entry(
        "fedfi.submodel.fiarse:FIARSE",
        "submodel",
        "Submodels of the largest weights, under a mask that moves with them",
        "Wu et al., NeurIPS 2024, arXiv:2407.19389",
    ),
    "magnitude": Entry(
        "fedfi.submodel.magnitude:Magnitude",
        "submodel",
        "Submodels of the largest weights, or of random ones, under a mask fixed for the round",
        "baseline of the FedFIbOS paper",
    ),
    "heterofl": Entry(
        "fedfi.submodel.heterofl:HeteroFL",
        "submodel",
        "The first channels of every layer, as a small dense network",
        "Diao, Ding, Tarokh, ICLR 2021, arXiv:2010.01264",
    ),
    "fedrolex": Entry(
        "fedfi.submodel.fedrolex:FedRolex",
        "submodel",
        "A window of channels that rolls on by one each round",
        "Alam et al., NeurIPS 2022, arXiv:2212.01548",
    ),
    "fedbrb": Entry(
        "fedfi.submodel.fedbrb:FedBRB",
        "submodel",
        "Blocks of channels that roll over every pair, and broadcast to the blocks left out; a reconstruction",
        "Xu et al., FedBRB, arXiv:2402.17202",
    ),
    "fjord": Entry(
        "fedfi.submodel.fjord:FjORD",
        "submodel",
        "The first channels of every layer at every width up to the client's, drawn step by step, with distillation",
        "Horvath et al., NeurIPS 2021, arXiv:2102.13451",
    ),
    "fedlagc": Entry(
        "fedfi.submodel.fedlagc:FedLAGC",
        "submodel",
        "Submodels of each layer's largest weights, by layer budgets, with corrected gradients; a reconstruction",
        "Hu et al., AAAI 2026, doi:10.1609/aaai.v40i26.39338",
    ),
    "feddropout": Entry(
        "fedfi.submodel.feddropout:FederatedDropout",
        "submodel",
        "Random channels, drawn anew for each client and round",
        "Caldas et al., arXiv:1812.07210",
    ),
}


def entries() -> dict[str, Entry]:
    """All methods by name, in the order of their families."""
    return dict(_ENTRIES)


def algorithm(name: str) -> type[Any]:
    """The class of a method.

    Args:
        name: A name of `entries`, or ``"package.module:Class"`` of your own, importable from the working
            directory too, as for ``python -m``.

    Raises:
        InputError: If there is no such method, or the class is not an `Algorithm`.
    """
    if name not in _ENTRIES and ":" not in name:
        raise InputError(unknown("algorithm", name, _ENTRIES) + ", or give package.module:Class")
    found: type[Any] = import_callable(_ENTRIES[name].target if name in _ENTRIES else name, "algorithm")
    from fedfi.federation.algorithm import Algorithm

    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InputError(f"algorithm {name!r} is not a subclass of fedfi.federation.algorithm.Algorithm")
    check_decorated(found)
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise InputError(f"algorithm {name!r} lacks {', '.join(missing)}; see fedfi.federation.algorithm.Algorithm")
    return found
