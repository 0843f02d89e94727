"""MF, centralised: Koren, Bell and Volinsky, Matrix Factorization Techniques for Recommender Systems, IEEE Computer
2009.

| paper | here |
|---|---|
| q_i, p_u | model `items`, `user` |
| score q_i . p_u | backbone `mf` |

Deviations: implicit feedback with drawn negatives and cross-entropy instead of squared errors on ratings, and no
biases, as in the comparisons of federated recommenders. Set `[train] optimizer = "adam"` and a rate such as 0.001: the
rates of federated methods do not suit it. Negatives never avoid held-out items, which the server does not know.
"""

from __future__ import annotations

from typing import ClassVar, final

from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.recsys.backbones import BACKBONES, Backbone
from fedfi.recsys.factorised import Factorised


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class MF(Factorised):
    """Matrix factorisation of all interactions on a server."""

    backbone: ClassVar[Backbone] = BACKBONES["mf"]
