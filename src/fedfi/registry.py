"""Every method by name. A method is loaded when it is asked for, so that listing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedfi.errors import InputError, unknown
from fedfi.importing import import_callable
from fedfi.validation import check_decorated

LISTED_BY = "fedfi list algorithms"
"""The command that prints all methods."""


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
    "fedfihe": Entry(
        "fedfi.personal.fedfihe:FedFIHE",
        "personal",
        "Packets of high Fisher information that enough clients vote for, summed as ciphertexts",
        "FedFIHE (Yao, Liu, Li et al.)",
    ),
    "local": Entry(
        "fedfi.personal.local:Local",
        "personal",
        "Each client trains alone",
        "baseline",
    ),
    "finetune": Entry(
        "fedfi.personal.finetune:FineTune",
        "personal",
        "FedAvg, fine-tuned by each client",
        "Cheng et al., arXiv:2108.07313",
    ),
    "fedper": Entry(
        "fedfi.personal.fedper:FedPer",
        "personal",
        "The body is averaged, heads are personal",
        "Arivazhagan et al., arXiv:1912.00818",
    ),
    "fedrep": Entry(
        "fedfi.personal.fedrep:FedRep",
        "personal",
        "The body is averaged; heads are fitted first",
        "Collins et al., ICML 2021, arXiv:2102.07078",
    ),
    "lg-fedavg": Entry(
        "fedfi.personal.lgfedavg:LGFedAvg",
        "personal",
        "The head is averaged, bodies are personal",
        "Liang et al., arXiv:2001.01523",
    ),
    "fedbabu": Entry(
        "fedfi.personal.fedbabu:FedBABU",
        "personal",
        "The body is trained under a fixed head, then fine-tuned",
        "Oh et al., ICLR 2022, arXiv:2106.06042",
    ),
    "ditto": Entry(
        "fedfi.personal.ditto:Ditto",
        "personal",
        "A personal model each, pulled towards the global one",
        "Li et al., ICML 2021, arXiv:2012.04221",
    ),
    "apfl": Entry(
        "fedfi.personal.apfl:APFL",
        "personal",
        "A learned mixture of the global and a personal model",
        "Deng et al., arXiv:2003.13461",
    ),
    "pfedme": Entry(
        "fedfi.personal.pfedme:PFedMe",
        "personal",
        "Personal models by Moreau envelopes",
        "Dinh et al., NeurIPS 2020, arXiv:2006.08848",
    ),
    "perfedavg": Entry(
        "fedfi.personal.perfedavg:PerFedAvg",
        "personal",
        "A global model that adapts in one local step",
        "Fallah et al., NeurIPS 2020, arXiv:2002.07948",
    ),
    "fedala": Entry(
        "fedfi.personal.fedala:FedALA",
        "personal",
        "Learned weights of what to take over, entry by entry",
        "Zhang et al., AAAI 2023, arXiv:2212.01197",
    ),
    "feddpa": Entry(
        "fedfi.personal.feddpa:FedDPA",
        "personal",
        "Entries of high Fisher information stay personal",
        "Yang et al., NeurIPS 2023",
    ),
    "he-fedavg": Entry(
        "fedfi.personal.hefedavg:HEFedAvg",
        "personal",
        "FedAvg under full homomorphic encryption",
        "Phong et al., IEEE TIFS 2018",
    ),
    "fedml-he": Entry(
        "fedfi.personal.fedmlhe:FedMLHE",
        "personal",
        "FedAvg whose most sensitive packets are encrypted, by one agreed mask",
        "Jin et al., arXiv:2303.10837",
    ),
    "maskcrypt": Entry(
        "fedfi.personal.maskcrypt:MaskCrypt",
        "personal",
        "FedAvg of which each round's most revealing packets are encrypted",
        "Hu and Li, IEEE TDSC 2024",
    ),
    "fedfiot": Entry(
        "fedfi.oneshot.fedfiot:FedFiOT",
        "oneshot",
        "Neurons aligned by Fisher-weighted optimal transport, then a Fisher-weighted mean",
        "FedFiOT, arXiv:2611.06783",
    ),
    "otfusion": Entry(
        "fedfi.oneshot.otfusion:OTFusion",
        "oneshot",
        "Every model carried to the largest client's by optimal transport, then the mean",
        "Singh, Jaggi, NeurIPS 2020, arXiv:1910.05653",
    ),
    "wbfusion": Entry(
        "fedfi.oneshot.wbfusion:WBFusion",
        "oneshot",
        "Layer by layer the Wasserstein barycentre of the clients' neurons",
        "Akash, Li, Trillos, arXiv:2210.06671",
    ),
    "pfnm": Entry(
        "fedfi.oneshot.pfnm:PFNM",
        "oneshot",
        "Neurons matched to a growing set of global ones by Bayesian nonparametrics",
        "Yurochkin et al., ICML 2019, arXiv:1905.12022",
    ),
    "fedma": Entry(
        "fedfi.oneshot.fedma:FedMA",
        "oneshot",
        "Layers matched one after the other; with a round a layer, matched layers freeze and the rest trains on",
        "Wang et al., ICLR 2020, arXiv:2002.06440",
    ),
    "fishermerge": Entry(
        "fedfi.oneshot.fishermerge:FisherMerge",
        "oneshot",
        "The mean of models, each parameter weighted by its Fisher information",
        "Matena, Raffel, NeurIPS 2022, arXiv:2111.09832",
    ),
    "regmean": Entry(
        "fedfi.oneshot.regmean:RegMean",
        "oneshot",
        "Linear layers by least squares on all clients' inputs, the rest by the mean",
        "Jin et al., ICLR 2023, arXiv:2212.09849",
    ),
    "fedfisher": Entry(
        "fedfi.oneshot.fedfisher:FedFisher",
        "oneshot",
        "The minimum of the sum of clients' quadratic approximations, with Kronecker factors or diagonals",
        "Jhunjhunwala, Wang, Joshi, AISTATS 2024, arXiv:2403.12329",
    ),
    "dense": Entry(
        "fedfi.oneshot.dense:DENSE",
        "oneshot",
        "The clients' ensemble distilled into one model on images from a generator",
        "Zhang et al., NeurIPS 2022, arXiv:2112.12371",
    ),
    "fedbens": Entry(
        "fedfi.oneshot.fedbens:FedBEns",
        "oneshot",
        "Modes of the product of clients' mixtures of Laplace approximations, as an ensemble",
        "Talpini, Savi, Neglia, arXiv:2503.15367",
    ),
    "ties": Entry(
        "fedfi.oneshot.ties:TIES",
        "oneshot",
        "The largest changes of each client, where they agree in sign",
        "Yadav et al., NeurIPS 2023, arXiv:2306.01708",
    ),
    "task-arithmetic": Entry(
        "fedfi.oneshot.taskarithmetic:TaskArithmetic",
        "oneshot",
        "The common start plus a multiple of the mean of what training changed",
        "Ilharco et al., ICLR 2023, arXiv:2212.04089",
    ),
    "rebasin": Entry(
        "fedfi.oneshot.rebasin:GitReBasin",
        "oneshot",
        "Models permuted into one basin by matching weights, then their mean",
        "Ainsworth, Hayase, Srinivasa, ICLR 2023, arXiv:2209.04836",
    ),
    "average": Entry(
        "fedfi.oneshot.average:Average",
        "oneshot",
        "The plain mean of the clients' models: FedAvg as a merge, with a merge's options",
        "McMahan et al., AISTATS 2017, arXiv:1602.05629",
    ),
    "ensemble": Entry(
        "fedfi.oneshot.ensemble:Ensemble",
        "oneshot",
        "All clients' models, their predictions averaged: an upper reference",
        "Guha, Talwalkar, Smith, arXiv:1902.11175",
    ),
    "best-client": Entry(
        "fedfi.oneshot.bestclient:BestClient",
        "oneshot",
        "The client's model that is best on the server's examples: a reference",
        "reference of the FedFiOT experiments",
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


_WRAPPERS = {
    "private": Entry(
        "fedfi.personal.private:Private",
        "personal",
        "Updates of a linear method are clipped and perturbed: differential privacy of whole clients",
        "Geyer et al., arXiv:1712.07557; McMahan et al., ICLR 2018, arXiv:1710.06963",
    ),
    "encrypted": Entry(
        "fedfi.personal.encrypted:Encrypted",
        "personal",
        "Updates of a linear method are added up as ciphertexts",
        "as he-fedavg",
    ),
}
"""What may stand around a linear method, from the inside out: noise comes before encryption."""


def wrappers() -> dict[str, Entry]:
    """All wrappers by the name of their table, from the inside out."""
    return dict(_WRAPPERS)


def wrapper(name: str) -> type[Any]:
    """The class of a wrapper, whose option `algorithm` is what it wraps."""
    found: type[Any] = import_callable(_WRAPPERS[name].target, "wrapper")
    return found


def entries() -> dict[str, Entry]:
    """All methods by name, in the order of their families."""
    return dict(_ENTRIES)


def classes() -> dict[str, str]:
    """``"module:Class"`` of all methods and wrappers, by the name of the class, which `fedfi` has as an attribute."""
    return {e.target.rpartition(":")[2]: e.target for e in (*_ENTRIES.values(), *_WRAPPERS.values())}


def algorithm(name: str) -> type[Any]:
    """The class of a method.

    Args:
        name: A name of `entries`, or ``"package.module:Class"`` of your own, importable from the working
            directory too, as for ``python -m``.

    Raises:
        InputError: If there is no such method, or the class is not an `Algorithm`.
    """
    if name not in _ENTRIES and ":" not in name:
        raise InputError(unknown("algorithm", name, _ENTRIES, LISTED_BY) + ", or give package.module:Class")
    found: type[Any] = import_callable(_ENTRIES[name].target if name in _ENTRIES else name, "algorithm")
    from fedfi.federation.algorithm import Algorithm

    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InputError(f"algorithm {name!r} is not a subclass of fedfi.federation.algorithm.Algorithm")
    check_decorated(found)
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise InputError(f"algorithm {name!r} lacks {', '.join(missing)}; see fedfi.federation.algorithm.Algorithm")
    return found
