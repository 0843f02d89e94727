"""Networks, copies of them in another order, and what a server has, for the tests of merging."""

from __future__ import annotations

import functools

import torch
from torch import nn

from fedfi.channels import discover
from fedfi.data import Dataset, FederatedData
from fedfi.federation.task import Task, Training
from fedfi.federation.workbench import Workbench
from fedfi.models import InputSpec, build
from fedfi.oneshot.method import Context
from fedfi.oneshot.server import Server
from fedfi.oneshot.uploads import Upload

IMAGES = InputSpec("image", (3, 16, 16), 4)
SMALL = InputSpec("image", (3, 8, 8), 4)
TEXT = InputSpec("text", (7,), 3, vocabulary=11, padding=1)
NETWORKS = {
    "mlp": (SMALL, "mlp", {"hidden": (9, 7)}),
    "cnn": (IMAGES, "cnn", {"width": 0.1}),
    "cnn with biases": (IMAGES, "cnn", {"width": 0.1, "bias": True}),
    "resnet18, batch norm": (SMALL, "resnet18", {"width": 0.1}),
    "resnet18, group norm": (SMALL, "resnet18", {"width": 0.125, "norm": "group"}),
    "transformer": (TEXT, "roberta", {"layers": 2, "hidden": 12, "heads": 3, "intermediate": 10}),
}


def spec_of(name: str) -> InputSpec:
    return NETWORKS[name][0]


def network(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    spec, kind, options = NETWORKS[name]
    model = build(kind, spec, options).eval()
    rng = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict().values():  # norms and their statistics tell units apart, too
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor += 0.3 * torch.rand(tensor.shape, generator=rng)
    return model


@functools.cache
def wiring(name: str):
    return discover(network(name), spec_of(name).example())


def tree_of(model: nn.Module):
    return {n: t.detach().clone() for n, t in Workbench(model).tree().items()}


def names_of(model: nn.Module) -> list[str]:
    return Workbench(model).layout.names


def fisher_of(model: nn.Module, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    tree = tree_of(model)
    return {n: torch.rand(tree[n].shape, generator=rng).pow(3) for n in names_of(model)}


def shuffles(wired, seed: int):
    rng = torch.Generator().manual_seed(seed)
    return {g.name: torch.randperm(g.units, generator=rng) for g in wired.groups}


def outputs(model: nn.Module, tree, spec: InputSpec) -> torch.Tensor:
    bench = Workbench(model)
    bench.load(tree)
    with torch.no_grad():
        return bench.module.eval()(spec.example(5))


def server(spec: InputSpec, make, examples: int = 0) -> Server:
    data = None
    if examples:
        inputs = spec.example(examples)
        inputs = inputs.int() if spec.kind == "text" else inputs
        data = Dataset(inputs, torch.arange(examples) % spec.classes, spec).examples()
    nothing = Dataset(spec.example(1).int() if spec.kind == "text" else spec.example(1), torch.zeros(1).long(), spec)
    task = Task(model=make, data=FederatedData({}, nothing.examples(), data, spec), training=Training())
    torch.manual_seed(0)
    return Server(task, Workbench(make()))


def context(where: Server, before=None, round: int = 0) -> Context:
    return Context(where, before, round, torch.Generator().manual_seed(0))


def uploads(models, statistics=None, examples=None) -> list[Upload]:
    """Uploads of modules."""
    found = []
    for i, model in enumerate(models):
        measured = {kind: trees[i] for kind, trees in (statistics or {}).items()}
        count = 10 if examples is None else examples[i]
        found.append(Upload(f"p{i}", tree_of(model), tuple(names_of(model)), count, measured))
    return found
