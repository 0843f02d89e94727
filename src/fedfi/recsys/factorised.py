"""Learning a factorisation on a server that has everyone's interactions: a round is an epoch of Adam or plain steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic.dataclasses import dataclass as validated
from torch import Tensor
from torch.nn import functional

from fedfi.data.negatives import Interactions, stream
from fedfi.federation.algorithm import CONFIG, Metrics
from fedfi.federation.packet import Tree
from fedfi.federation.task import Task
from fedfi.federation.warming import OPTIMIZERS
from fedfi.recsys.backbones import Backbone, NeuralHead
from fedfi.recsys.central import Central, CentralState
from fedfi.recsys.recipe import check_training, fresh_items, ratings_of

_USERS = "user"


def begin(task: Task, backbone: Backbone, rng: torch.Generator) -> tuple[Tree, dict[str, float]]:
    """Items ``[m, d]``, users ``[c, d]`` and the scoring function's weights; and the recipe.

    Raises:
        InputError: If the `[train]` table asks for what is not done here.
    """
    training, data = task.training, ratings_of(task)
    check_training(training, "recommenders on a server take steps of sgd or adam", ("sgd", "adam"), decay=True)
    items = fresh_items(task, rng).clone()
    head = backbone.head(items.shape[1], rng)
    bound = head.pop(_USERS).numel() ** -0.5  # that of a single user's vector
    users = torch.empty(len(data.users), items.shape[1]).uniform_(-bound, bound, generator=rng)
    model = {"items": items, _USERS: users}
    settings = {
        "rate": training.learning_rate,
        "decay": training.round_decay,
        "batch": float(training.batch_size),
        "epochs": float(training.epochs or 1),
        "adam": float(training.optimizer == "adam"),
        "penalty": training.weight_decay,
        "negatives": float(data.per_positive),
        "round": 0.0,
    }
    return model | head, settings


def learn(state: CentralState, backbone: Backbone, rng: torch.Generator) -> tuple[Tree, Tree, Metrics]:
    """One round on all interactions that are known, negatives drawn anew; the model, Adam's moments, the mean loss."""
    settings = state.settings
    parameters = {n: t.clone().requires_grad_() for n, t in state.model.items()}
    done = int(state.progress.get("rounds", torch.zeros(1)).item())
    rate = settings["rate"] * settings["decay"] ** done
    kind = torch.optim.Adam if settings["adam"] else torch.optim.SGD
    optimizer = kind(list(parameters.values()), lr=rate, weight_decay=settings["penalty"])
    for number, name in enumerate(parameters):
        if f"{name}/exp_avg" in state.progress:
            kept = {k: state.progress[f"{name}/{k}"].clone() for k in ("step", "exp_avg", "exp_avg_sq")}
            optimizer.state[list(parameters.values())[number]] = kept
    rows = (state.known & state.seen.any(1)).nonzero()[:, 0].numpy()
    seen = [state.seen[row].nonzero()[:, 0].numpy() for row in rows.tolist()]
    starts = np.concatenate([[0], np.cumsum([len(s) for s in seen])])
    positives = np.concatenate(seen) if seen else np.zeros(0, dtype=np.int64)
    of = Interactions(positives, starts, positives, starts, state.seen.shape[1], int(settings["negatives"]))
    total, count = 0.0, 0
    for _ in range(int(settings["epochs"]) if len(rows) else 0):
        keys = torch.randint(-(2**63), 2**63 - 1, (len(rows),), generator=rng).numpy().view(np.uint64)
        drawn = stream(of, np.arange(len(rows)), keys)
        order = torch.randperm(len(drawn.item), generator=rng)
        user, item, label = (torch.from_numpy(a)[order] for a in (rows[drawn.client], drawn.item, drawn.label))
        size = int(settings["batch"])
        for u, i, y in zip(user.split(size), item.split(size), label.split(size), strict=True):
            loss = functional.binary_cross_entropy_with_logits(pair_logits(backbone, parameters, u, i), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item() * len(u), count + len(u)
    progress = {"rounds": torch.tensor([done + 1])}
    for name, tensor in parameters.items():
        progress |= {f"{name}/{k}": v for k, v in optimizer.state.get(tensor, {}).items() if isinstance(v, Tensor)}
    metrics: Metrics = {"train/loss": total / count} if count else {}
    return {n: t.detach() for n, t in parameters.items()}, progress, metrics


def pair_logits(backbone: Backbone, model: Tree, users: Tensor, items: Tensor) -> Tensor:
    """Logits ``[e]`` of pairs."""
    rows, own = functional.embedding(items, model["items"]), functional.embedding(users, model[_USERS])
    if backbone.weight == _USERS:
        return (rows * own).sum(1)
    shared = {n: t[None] for n, t in model.items() if n not in ("items", _USERS)}
    if isinstance(backbone, NeuralHead):  # one network for all pairs
        return backbone.network(shared, torch.cat([own, rows], 1)[None])[0]
    return backbone.logits(
        {_USERS: own, **{n: t.expand(len(own), *t.shape[1:]) for n, t in shared.items()}}, rows[:, None]
    )[:, 0]


def for_client(state: CentralState, row: int) -> Tree:
    """The model with one user's vector ``[d]``."""
    return {**state.model, _USERS: state.model[_USERS][row]}


def score(backbone: Backbone, sent: list[Tree]) -> Tensor:
    """Logits ``[n, m]``."""
    shared = {n: t for n, t in sent[0].items() if n not in ("items", _USERS)}
    heads = {n: t.expand(len(sent), *t.shape) for n, t in shared.items()}
    heads[_USERS] = torch.stack([tree[_USERS] for tree in sent])
    return backbone.logits(heads, sent[0]["items"].expand(len(sent), -1, -1))


@validated(frozen=True, kw_only=True, config=CONFIG)
class Factorised(Central):
    """A factorisation on a server; a method names its backbone."""

    backbone: ClassVar[Backbone]

    def loads(self) -> tuple[str, ...]:
        """What torch's optimizers need."""
        return (OPTIMIZERS,)

    def begin(self, task: Task, rng: torch.Generator) -> tuple[Tree, dict[str, float]]:
        """Fresh items, users and weights."""
        return begin(task, self.backbone, rng)

    def learn(self, state: CentralState, rng: torch.Generator) -> tuple[Tree, Tree, Metrics]:
        """An epoch on everyone's interactions."""
        return learn(state, self.backbone, rng)

    def for_client(self, state: CentralState, row: int) -> Tree:
        """The model with the client's own vector."""
        return for_client(state, row)

    def score(self, sent: Sequence[Tree], own: Sequence[Tensor]) -> Tensor:
        """The model's logits."""
        return score(self.backbone, list(sent))
