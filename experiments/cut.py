"""Data sets cut to what two CPU cores can train on; named in an experiment as `cut:FUNCTION`."""

from __future__ import annotations

import dataclasses

import torch

from fedfi.data import Dataset, load


def first(name: str, count: int) -> tuple[Dataset, Dataset]:
    """The first examples of a set's training examples after one fixed shuffle, and its whole test set."""
    train, test = load(name)
    assert test is not None  # all of these have one
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:count].sort().values
    return dataclasses.replace(train, inputs=train.inputs[rows], targets=train.targets[rows]), test


def cifar10_20000() -> tuple[Dataset, Dataset]:
    """20,000 training images of CIFAR-10."""
    return first("cifar10", 20_000)


def cifar10_10000() -> tuple[Dataset, Dataset]:
    """10,000 training images of CIFAR-10."""
    return first("cifar10", 10_000)


def svhn_20000() -> tuple[Dataset, Dataset]:
    """20,000 training images of SVHN."""
    return first("svhn", 20_000)


def cinic10_20000() -> tuple[Dataset, Dataset]:
    """20,000 training images of CINIC-10."""
    return first("cinic10", 20_000)


def cifar10_1000() -> tuple[Dataset, Dataset]:
    """1,000 training images of CIFAR-10, to try a file out."""
    train, test = first("cifar10", 1_000)
    rows = torch.arange(0, len(test), 20)  # the file may be sorted by class
    return train, dataclasses.replace(test, inputs=test.inputs[rows], targets=test.targets[rows])
