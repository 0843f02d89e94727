"""What a run's model says of every test example, kept beside the run: per-class accuracy, agreement with clients.

`runs/NAME.npz` holds `said` `[models, examples]` (classes, uint8): the deployed model's, and for `ensemble` those of
the clients' models after it, which the other methods of the same setting and seed are compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfi.federation.algorithm import Algorithm, DeploysNetwork
from fedfi.federation.loop import RunResult
from fedfi.federation.packet import Packet
from fedfi.federation.task import Task
from fedfi.federation.workbench import Benches
from fedfi.oneshot.ensemble import Ensemble

_BATCH = 500


def keep(path: Path, algorithm: Algorithm[Any], task: Task, result: RunResult) -> None:
    """Writes what the run's model says of the test examples."""
    benches = Benches(task, 0)
    if isinstance(algorithm, DeploysNetwork):
        module = algorithm.deploy(Packet(result.model), benches).module
    else:
        benches.whole.load(result.model)
        module = benches.whole.module
    networks = [module]
    if isinstance(algorithm, Ensemble):
        networks += module.get_submodule("networks").children()
    test = task.examples.test
    said = np.zeros((len(networks), len(test)), np.uint8)
    with torch.inference_mode():
        for row, network in zip(said, networks, strict=True):
            network.eval()
            for positions in torch.arange(len(test)).split(_BATCH):
                row[positions.numpy()] = network(test.batch(positions)[0]).argmax(1).numpy()
    np.savez_compressed(path, said=said, targets=test.targets.numpy().astype(np.uint8))


def figures(path: Path, clients: Path) -> dict[str, Any]:
    """Accuracy of each class, and how often a model says what each client's model says; shares.

    Args:
        path: The run's predictions.
        clients: Those of `ensemble` in the same setting and seed, if it was run.
    """
    if not path.exists():
        return {}
    held = np.load(path)
    own, targets = held["said"][0], held["targets"]
    classes = [round(float((own == targets)[targets == c].mean()), 4) for c in np.unique(targets)]
    found: dict[str, Any] = {"classes": classes, "worst_class": min(classes)}
    if clients.exists():
        others = np.load(clients)
        agreement = [round(float((own == said).mean()), 4) for said in others["said"][1:]]
        scores = [round(float((said == targets).mean()), 4) for said in others["said"][1:]]
        found |= {"agreement": agreement, "clients": scores}
        found |= {"agreement_largest": max(agreement), "agreement_mean": round(float(np.mean(agreement)), 4)}
    return found
