"""Labels out of what clients show, and membership out of losses.

| attack | what it reads | success | chance |
|---|---|---|---|
| labels | masks, Fisher scores or changes of many clients | accuracy on clients left out | commonest label |
| membership (Yeom et al., CSF 2018) | losses under what is known of the model | area under the ROC curve | .5 |

The label attack is given the true labels of the other clients, which a server that runs clients of its own would have.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfi.data.dataset import Examples
from fedfi.federation.task import Loss

_MOST_FEATURES = 4096


@dataclass(frozen=True)
class LabelAttack:
    """How well dominant labels were told.

    Attributes:
        accuracy: On clients that were left out.
        chance: Of always naming the commonest label.
        clients: How many there were.
    """

    accuracy: float
    chance: float
    clients: int


def dominant_label(examples: Examples) -> int:
    """The commonest class; of equal ones the first."""
    return int(examples.class_counts().argmax())


def infer_labels(
    features: Sequence[Tensor], labels: Sequence[int], groups: Sequence[str], seed: int
) -> LabelAttack | None:
    """Fits a logistic classifier on some clients and names the labels of the others, five times over.

    Args:
        features: What each client showed, in one round each.
        labels: Its dominant label.
        groups: Its id, so that a client is never on both sides.
        seed: Of the folds.

    Returns:
        None where there are too few clients or labels to learn from.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    names = sorted(set(groups))
    targets = np.array(labels)
    if len(names) < 5 or len(set(labels)) < 2:
        return None
    table = np.stack([_compact(f).numpy() for f in features])
    spread = table.std(0)
    table = (table[:, spread > 0] - table[:, spread > 0].mean(0)) / spread[spread > 0]
    chance = float(max(np.bincount(targets)) / len(targets))
    if table.shape[1] == 0:  # all clients show the same
        return LabelAttack(chance, chance, len(names))
    hits = 0
    for fitted, left in GroupKFold(5, shuffle=True, random_state=seed).split(table, targets, list(groups)):
        if len(set(targets[fitted])) < 2:
            hits += int((targets[left] == targets[fitted][0]).sum())
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a search that ends early is a weaker attack, not an error
            model = LogisticRegression(C=0.1, max_iter=200).fit(table[fitted], targets[fitted])
        hits += int((model.predict(table[left]) == targets[left]).sum())
    return LabelAttack(hits / len(targets), chance, len(names))


def _compact(feature: Tensor) -> Tensor:
    """At most some thousand numbers: sums over runs of neighbours."""
    flat = feature.detach().double().reshape(-1)
    size = -(-len(flat) // _MOST_FEATURES)
    padded = flat.new_zeros(-(-len(flat) // size) * size)
    padded[: len(flat)] = flat
    return padded.view(-1, size).sum(1)


def membership(
    module: nn.Module, model: dict[str, Tensor], members: Examples, others: Examples, loss: Loss
) -> float | None:
    """Area under the ROC curve of telling training from test examples by their loss; None where either is missing.

    Args:
        module: The architecture.
        model: The client's model, as far as it is known.
        members: Its training examples.
        others: Its test examples.
        loss: Per-example loss.
    """
    if not len(members) or not len(others):
        return None
    module.eval()
    values = []
    for examples in (members, others):
        inputs, targets = examples.batch(torch.arange(len(examples)))
        with torch.no_grad():
            values.append(loss(functional_call(module, model, (inputs,)), targets))
    inside, outside = values
    wins = (inside[:, None] < outside[None, :]).double() + 0.5 * (inside[:, None] == outside[None, :]).double()
    return float(wins.mean())
