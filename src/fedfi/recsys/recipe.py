"""The local recipe of a recommender, read off the task's `[train]` table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedfi.data.ratings import ClientRatings, RatingsData
from fedfi.errors import InputError, SettingError
from fedfi.federation.client import Client
from fedfi.federation.task import Task, Training
from fedfi.federation.workbench import fresh_workbench
from fedfi.recsys.objective import LossName, Objective, Pointwise, objective
from fedfi.room import check_room
from fedfi.validation import shown


@dataclass(frozen=True)
class Recipe:
    """How a client trains in one round.

    Attributes:
        rate: Step size of what is private.
        item_rate: Step size of the item table.
        batch: Examples a step, negatives included; whole groups of the objective.
        epochs: Passes over the positives, each with negatives drawn anew.
        clip: Largest norm of a client's gradient, of table and head together, or None.
        alternate: Whether each batch first moves the head, then, scored anew, the items.
        subspace: Orthonormal columns ``[d, r]``; the table's updates lie in their span. None: anywhere.
        pull: Share of the way to its anchor that a table goes after each step.
        objective: What scores are trained for.
    """

    rate: float
    item_rate: float
    batch: int
    epochs: int
    clip: float | None
    alternate: bool = False
    subspace: Tensor | None = None
    pull: float = 0.0
    objective: Objective = field(default_factory=Pointwise)


def recipe_of(task: Task, round: int, item_rate: float, alternate: bool = False, loss: LossName = "bce") -> Recipe:
    """The recipe of a round.

    The gradient of one item's row is a mean over a batch, so it shrinks as 1 / batch; hence the table's step size is
    learning_rate * number of items * `item_rate`, as the FedRKG code has it. Where the loss takes a positive with its
    negatives, a batch is filled with as many of these groups as it has room for, and with one at least.

    Raises:
        InputError: If the `[train]` table asks for something that recommenders do not do.
    """
    t = task.training
    check_training(t, "methods of recommendation take plain steps", ("sgd",), decay=False)
    rate = t.learning_rate * t.round_decay**round
    items = len(ratings_of(task).items)
    goal = objective(loss, ratings_of(task).per_positive)
    batch = max(1, t.batch_size // goal.group) * goal.group
    return Recipe(rate, rate * items * item_rate, batch, t.epochs or 1, t.clip_norm, alternate, objective=goal)


def check_training(training: Training, why: str, optimizers: Sequence[str], *, decay: bool) -> None:
    """Checks that the `[train]` table asks for nothing that a recommender does not do.

    Args:
        training: The table.
        why: What is done instead, for messages.
        optimizers: Those that there are.
        decay: Whether weights may decay and step sizes follow a schedule.

    Raises:
        SettingError: Naming key, value and the nearest valid one.
    """
    if training.optimizer not in optimizers:
        choices = " or ".join(map(shown, optimizers))
        raise SettingError(f"train.optimizer = {shown(training.optimizer)}: {why} (nearest valid: {choices})")
    if training.steps is not None:
        raise SettingError(
            f"train.steps = {training.steps}: methods of recommendation count epochs (nearest valid: epochs = 1)"
        )
    plain: dict[str, Any] = (
        {"momentum": 0.0} if decay else {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    )
    for key, value in plain.items():
        if (given := getattr(training, key)) != value:
            hint = "; round_decay is possible" if key == "schedule" else ""
            raise SettingError(f"train.{key} = {shown(given)}: {why} (nearest valid: {shown(value)}{hint})")


def fresh_items(task: Task, rng: torch.Generator, users: int = 1) -> Tensor:
    """The item table ``[items, d]`` of a freshly made model.

    Args:
        task: Its model.
        rng: Where it comes from.
        users: How many will hold a table of that size, which memory is checked for.

    Raises:
        InputError: If the model has none, or memory is too small for those of all users.
    """
    tree, count = fresh_workbench(task, rng).tree(), len(ratings_of(task).items)
    table = tree.get("items")
    if table is None or table.dim() != 2 or len(table) != count:
        has = ", ".join(f"{name} {list(value.shape)}" for name, value in tree.items()) or "none"
        raise InputError(
            f"the model is no item table: methods of recommendation need a parameter 'items' [{count}, d], it has {has}"
            " (nearest valid: fedfi.build('item_table', data.spec))"
        )
    dimension = table.shape[1]
    what = f"tables of {users} users, each of {count} items of {dimension} numbers,"
    check_room(what, users * table.numel() * table.element_size())
    return table


def ratings_of(task: Task) -> RatingsData:
    """The task's data, which must be ratings.

    Raises:
        InputError: If they are examples.
    """
    if not isinstance(task.data, RatingsData):
        raise InputError(f"methods of recommendation learn from ratings, but {task.data.name!r} holds examples")
    return task.data


def own_ratings(client: Client) -> ClientRatings:
    """The client's ratings.

    Raises:
        InputError: If its data are examples.
    """
    data: object = client.data
    if not isinstance(data, ClientRatings):
        raise InputError(f"methods of recommendation learn from ratings, but client {client.id!r} holds examples")
    return data
