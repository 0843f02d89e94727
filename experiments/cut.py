"""Data sets cut to what two CPU cores can train on; named in an experiment as `cut:FUNCTION`."""

from __future__ import annotations

import dataclasses

import torch

from fedfi.data import Dataset, load


def cifar10(count: int) -> tuple[Dataset, Dataset]:
    """The first examples of CIFAR-10's training set after one fixed shuffle, and its whole test set."""
    train, test = load("cifar10")
    assert test is not None  # CIFAR-10 has one
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:count].sort().values
    return dataclasses.replace(train, inputs=train.inputs[rows], targets=train.targets[rows]), test


def cifar10_20000() -> tuple[Dataset, Dataset]:
    """20,000 training images."""
    return cifar10(20_000)


def cifar10_10000() -> tuple[Dataset, Dataset]:
    """10,000 training images."""
    return cifar10(10_000)


def cifar10_1000() -> tuple[Dataset, Dataset]:
    """1,000 training images, to try a file out."""
    train, test = cifar10(1_000)
    rows = torch.arange(0, len(test), 20)  # the file may be sorted by class
    return train, dataclasses.replace(test, inputs=test.inputs[rows], targets=test.targets[rows])
