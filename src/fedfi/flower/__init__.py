"""Experiments as Flower apps, keys, a federation on this machine; and what a Flower project of your own needs.

Names are loaded at their first use, so that only what needs Flower loads it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfi.engines.flower.agreement import Agreement
    from fedfi.engines.flower.engine import FlowerEngine, Patience
    from fedfi.engines.flower.node import Node, clients_of_partition, node_app
    from fedfi.engines.flower.wire import Limits
    from fedfi.flower.appdir import write_app
    from fedfi.flower.apps import client_app, server_app
    from fedfi.flower.keys import make_keys
    from fedfi.flower.local import LocalFederation

_HOMES = {
    "Agreement": "engines.flower.agreement",
    "FlowerEngine": "engines.flower.engine",
    "Limits": "engines.flower.wire",
    "LocalFederation": "flower.local",
    "Node": "engines.flower.node",
    "Patience": "engines.flower.engine",
    "client_app": "flower.apps",
    "clients_of_partition": "engines.flower.node",
    "make_keys": "flower.keys",
    "node_app": "engines.flower.node",
    "server_app": "flower.apps",
    "write_app": "flower.appdir",
}

__all__ = [
    "Agreement",
    "FlowerEngine",
    "Limits",
    "LocalFederation",
    "Node",
    "Patience",
    "client_app",
    "clients_of_partition",
    "make_keys",
    "node_app",
    "server_app",
    "write_app",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedfi.flower' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedfi.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
