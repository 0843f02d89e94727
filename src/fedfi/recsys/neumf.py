"""NeuMF, centralised: He et al., Neural Collaborative Filtering, WWW 2017, arXiv:1708.05031.

| paper | here |
|---|---|
| P, Q, user and item embeddings | model `user`, `items` |
| multilayer perceptron on their concatenation | backbone `ncf`, two hidden layers of d and d / 2 units |

Deviations: the multilayer perceptron alone, without the second, multiplied pair of embeddings (the paper's GMF) and
without pre-training, so that it has as many numbers an item as the methods it is compared with. Set `[train]
optimizer = "adam"` and a rate such as 0.001. Negatives never avoid held-out items, which the server does not know.
"""

from __future__ import annotations

from typing import ClassVar, final

from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.recsys.backbones import BACKBONES, Backbone
from fedfi.recsys.factorised import Factorised


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class NeuMF(Factorised):
    """Neural collaborative filtering of all interactions on a server."""

    backbone: ClassVar[Backbone] = BACKBONES["ncf"]
