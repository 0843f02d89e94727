"""Two dimensions for many: t-SNE, the only file that asks scikit-learn for it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_PERPLEXITY = 30.0


def embedded(*tables: Tensor) -> Tensor:
    """The rows of tables `[n, d]`, all together, in the plane: `[sum of n, 2]`; the same for the same rows.

    Raises:
        ValueError: If there are fewer than four rows.
    """
    rows = torch.cat(tables).double().contiguous()
    if len(rows) < 4:
        raise ValueError(f"{len(rows)} rows cannot be laid out; expected at least 4")
    return _laid_out(rows.numpy().tobytes(), rows.shape[1])


@lru_cache(maxsize=16)  # a page that follows a run is made again and again
def _laid_out(content: bytes, dimension: int) -> Tensor:
    from sklearn.manifold import TSNE

    rows = torch.frombuffer(bytearray(content), dtype=torch.float64).view(-1, dimension)
    if not bool(torch.isfinite(rows).all()) or bool((rows == rows[0]).all()):
        return torch.zeros(len(rows), 2)
    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    start = "pca" if dimension > 1 else "random"
    found = TSNE(n_components=2, perplexity=perplexity, init=start, random_state=0).fit_transform(rows.numpy())
    return torch.from_numpy(found)
