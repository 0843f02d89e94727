"""Every method by name. A method is loaded when it is asked for, so that listing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedfi.errors import InputError, unknown
from fedfi.importing import import_callable


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
    "fedrkg": Entry(
        "fedfi.recsys.fedrkg:FedRKG",
        "recsys",
        "Long local training of private item tables, guided by their mean now and then",
        "Lim et al., arXiv:2511.12959",
    ),
    "fedmf": Entry(
        "fedfi.recsys.fedmf:FedMF",
        "recsys",
        "Matrix factorisation with private user vectors, one item table averaged each round",
        "Chai et al., IEEE Intelligent Systems 2021, arXiv:1906.05108",
    ),
    "fedncf": Entry(
        "fedfi.recsys.fedncf:FedNCF",
        "recsys",
        "A shared neural scoring function, private user vectors, one item table",
        "Perifanis and Efraimidis, KBS 2022, arXiv:2106.04405",
    ),
    "pfedrec": Entry(
        "fedfi.recsys.pfedrec:PFedRec",
        "recsys",
        "Private linear scoring functions, item tables tuned by each client",
        "Zhang et al., IJCAI 2023, arXiv:2301.08143",
    ),
    "gpfedrec": Entry(
        "fedfi.recsys.gpfedrec:GPFedRec",
        "recsys",
        "Item tables from similar users, by a graph on the server",
        "Zhang et al., KDD 2024, arXiv:2305.07866",
    ),
    "colr": Entry(
        "fedfi.recsys.colr:CoLR",
        "recsys",
        "Matrix factorisation with updates of low rank",
        "Nguyen et al., WWW 2024, arXiv:2401.03748",
    ),
    "fedrap": Entry(
        "fedfi.recsys.fedrap:FedRAP",
        "recsys",
        "A shared and a private item table, added",
        "Li et al., ICLR 2024, arXiv:2301.09109",
    ),
    "feddae": Entry(
        "fedfi.recsys.feddae:FedDAE",
        "recsys",
        "An autoencoder with a shared and a private encoder",
        "Li et al., AAAI 2025, arXiv:2408.08931",
    ),
    "fedcia": Entry(
        "fedfi.recsys.fedcia:FedCIA",
        "recsys",
        "Private factorisations whose item similarities are drawn to everyone's",
        "Han et al., SIGIR 2025, arXiv:2504.05563",
    ),
    "mf": Entry(
        "fedfi.recsys.mf:MF",
        "recsys",
        "Centralised matrix factorisation: users hand over their interactions",
        "Koren et al., IEEE Computer 2009",
    ),
    "neumf": Entry(
        "fedfi.recsys.neumf:NeuMF",
        "recsys",
        "Centralised neural collaborative filtering",
        "He et al., WWW 2017, arXiv:1708.05031",
    ),
    "itemknn": Entry(
        "fedfi.recsys.itemknn:ItemKNN",
        "recsys",
        "Centralised item neighbourhoods by common users",
        "Sarwar et al., WWW 2001",
    ),
    "popularity": Entry(
        "fedfi.recsys.popularity:Popularity",
        "recsys",
        "Items by how many users have them",
        "Cremonesi et al., RecSys 2010",
    ),
    "random": Entry(
        "fedfi.recsys.random:Random",
        "recsys",
        "Items by chance: the floor",
        "none; every user's order is drawn",
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
    return found
