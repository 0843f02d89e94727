"""Data sets, and how they are divided among clients."""

from fedfi.data.dataset import Dataset, Examples
from fedfi.data.federated import ClientData, FederatedData
from fedfi.data.inputs import Inputs
from fedfi.data.partition import partitions
from fedfi.data.sources import accepted, available, load
from fedfi.data.split import federate

__all__ = [
    "ClientData",
    "Dataset",
    "Examples",
    "FederatedData",
    "Inputs",
    "accepted",
    "available",
    "federate",
    "load",
    "partitions",
]
