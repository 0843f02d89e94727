"""The only file that imports Flower: what the others need of it."""

from __future__ import annotations

from fedfi.errors import InputError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise InputError("this needs Flower 1.42 or newer: pip install 'fedfi[flower]'") from error

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "Grid",
    "Message",
    "MessageType",
    "RecordDict",
    "ServerApp",
]
