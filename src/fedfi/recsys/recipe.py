"""The local recipe of a recommender, read off the task's `[train]` table."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedfi.data.ratings import ClientRatings, RatingsData
from fedfi.errors import InputError
from fedfi.federation.client import Client
from fedfi.federation.task import Task
from fedfi.recsys.objective import LossName, Objective, Pointwise, objective


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
    if t.optimizer != "sgd" or t.momentum or t.weight_decay:
        raise InputError("train: methods of recommendation take plain steps (optimizer = 'sgd', no momentum or decay)")
    if t.steps is not None:
        raise InputError(f"train.steps = {t.steps}: methods of recommendation count epochs (nearest valid: epochs = 1)")
    if t.schedule != "constant":
        raise InputError(f"train.schedule = {t.schedule!r}: must be 'constant' here; round_decay is possible")
    rate = t.learning_rate * t.round_decay**round
    items = len(ratings_of(task).items)
    goal = objective(loss, ratings_of(task).per_positive)
    batch = max(1, t.batch_size // goal.group) * goal.group
    return Recipe(rate, rate * items * item_rate, batch, t.epochs or 1, t.clip_norm, alternate, objective=goal)


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
