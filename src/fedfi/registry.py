"""Every method by name. A method is loaded when it is asked for, so that listing them costs nothing."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfi.errors import InputError, unknown

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


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
    if name in _ENTRIES:
        known: type[Any] = _load(_ENTRIES[name].target)
        return known
    if not _TARGET.fullmatch(name):
        raise InputError(unknown("algorithm", name, _ENTRIES) + ", or give package.module:Class")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = _load(name)
    except ImportError as error:
        raise InputError(f"algorithm {name!r} cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)
    from fedfi.federation.algorithm import Algorithm

    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InputError(f"algorithm {name!r} is not a subclass of fedfi.federation.algorithm.Algorithm")
    return found


def _load(target: str) -> Any:
    module_name, _, class_name = target.partition(":")
    module = importlib.import_module(module_name)
    if not hasattr(module, class_name):
        classes = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
        raise InputError(f"module {module_name!r}: " + unknown("class", class_name, classes))
    return getattr(module, class_name)
