"""Grid files for tests, and runs that were never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedfi.reproducing.grid import Cell, Grid
from fedfi.reproducing.jobs import run_path

RATINGS = """
seeds = [0, 1]
rates = [0.1]
metric = "validation/hr@10"
shown = { "HR@10" = "ranking/hr@10" }
[base.data]
name = "synthetic_ratings"
[base.model]
name = "item_table"
dimension = 4
[base.train]
batch_size = 64
[base.evaluate]
every = 1
best = "validation/hr@10"
patience = 2
[scale.small]
rounds = 6
tuning_rounds = 2
[scale.paper]
rounds = 60
[axis.negatives.honest]
data = { negatives = "exclude_train" }
[axis.negatives.leaky]
data = { negatives = "exclude_all" }
[method.fedrkg]
algorithm = { name = "fedrkg" }
tune = { "algorithm.interval" = [1, 2], "algorithm.beta" = [0.5] }
[method.mf]
rates = [0.01, 0.03]
seeds = [0]
skip = { negatives = ["leaky"] }
algorithm = { name = "mf" }
train = { optimizer = "adam" }
scale.paper.rates = [0.5]
scale.paper.train = { batch_size = 1024 }
[method.popularity]
ignores = ["negatives"]
rounds = 1
algorithm = { name = "popularity" }
"""

DIGITS = """
seeds = [0, 1]
rates = [0.1, 0.5]
last = 1
shown = { accuracy = "global/accuracy", local = "local/accuracy_mean" }

[paper]
paper = "Some Paper"
shows = "Table 9"
measures = "Accuracy"
hours = 0.1
note = "A note."
[[paper.figures]]
source = "Table 9"
metric = "global/accuracy"
at = { skew = "iid" }
[paper.figures.values]
plain = [91.5, 0.4]
[[paper.figures]]
source = "Section 2"
metric = "global/accuracy"
[paper.figures.values]
near = "80 to 90"

[base.data]
name = "digits"
clients = 4
validation = 50
[base.model]
name = "mlp"
hidden = [4]
[base.train]
batch_size = 20
steps = 2

[scale.small]
rounds = 2
tuning_rounds = 1
[scale.paper]
rounds = 3

[axis.skew.iid]
data = { partition = { by = "iid" } }
[axis.skew.dirichlet]
data = { partition = { by = "dirichlet", alpha = 1.0 } }

[method.plain]
algorithm = { name = "fedavg" }
[method.near]
rates = [0.1]
algorithm = { name = "fedprox" }
"""


def grid(folder: Path, text: str = RATINGS, scale: str = "small", seeds: tuple[int, ...] = ()) -> Grid:
    """A grid of a file in a folder."""
    (folder / "g.toml").write_text(text)
    return Grid(folder / "g.toml", scale, seeds)


def pretend(found: Grid, out: Path, cell: Cell, choice: Any, **curves: list[list[float]]) -> None:
    """Writes the file of a run that came to these curves; a number is named with __ for a slash."""
    content = {
        "settings": found.settings(cell, choice), "best": None, "failures": 0, "bytes_down": 2_000_000,
        "bytes_up": 1_000_000, "seconds": 3.0, "curves": {k.replace("__", "/"): v for k, v in curves.items()},
    }  # fmt: skip
    path = run_path(out, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n")
