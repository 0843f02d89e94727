"""One model instance a worker, its trainable parameters laid out as views of a single vector.

The vector makes an optimiser step, a mask, a squared gradient or a difference one operation instead of one per
parameter, and a packet one tensor. The first `pool` entries are those that may be selected for a submodel
(convolutions, linear layers, embeddings); the parameters of normalisation layers follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedfi.errors import InputError
from fedfi.federation.packet import Tree
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task
from fedfi.models.factory import check_module
from fedfi.models.norms import has_static_norms
from fedfi.models.pools import selection_pools
from fedfi.numerics.allocator import keep_freed_memory

T = TypeVar("T")
_KEPT = 32  # smaller models a worker keeps; a federation has about as many as it has levels


@dataclass(frozen=True)
class VectorLayout:
    """Where each trainable parameter of a module lies in the vector.

    Attributes:
        names: Parameter names, selectable ones first.
        shapes: Their shapes, in the same order.
        pools: How many of them are in each pool of selectable ones, in order.
    """

    names: list[str]
    shapes: list[list[int]]
    pools: list[int]

    @staticmethod
    def of(module: nn.Module) -> VectorLayout:
        """The layout of a module; parameters that need no gradient are left out.

        Raises:
            InputError: If the module has nothing to train.
        """
        trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise InputError(f"the model {type(module).__name__} has no trainable parameter")
        pools = selection_pools(module)
        pooled = [name for pool in pools for name in pool]
        names = pooled + [n for n in trainable if n not in set(pooled)]
        return VectorLayout(names, [list(trainable[n].shape) for n in names], [len(pool) for pool in pools])

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each parameter."""
        return [int(torch.Size(s).numel()) for s in self.shapes]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(self.sizes)

    @property
    def pool_sizes(self) -> list[int]:
        """Number of entries of each selectable parameter."""
        return self.sizes[: sum(self.pools)]

    @property
    def pool(self) -> int:
        """Number of selectable entries: the vector's first."""
        return sum(self.pool_sizes)

    def split(self, vector: Tensor) -> Tree:
        """Named views of a vector `[size]`."""
        parts = vector.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def join(self, tree: Mapping[str, Tensor]) -> Tensor:
        """The vector `[size]` of a tree that holds at least this layout's names."""
        return torch.cat([tree[n].reshape(-1) for n in self.names])


def _zeros_like(vector: Tensor) -> Tensor:
    """Zeros of a vector's kind, in memory that a processor's system gives page by page as it is written.

    So the gradient of a model that is only read, as on a server, takes no memory. Aligned as torch aligns.
    """
    if vector.device.type != "cpu":
        return torch.zeros_like(vector)
    size = vector.numel() * vector.element_size()
    plain = torch.from_numpy(np.zeros(size + _ALIGNMENT, dtype=np.uint8))
    start = -plain.data_ptr() % _ALIGNMENT
    return plain[start : start + size].view(vector.dtype)


_ALIGNMENT = 64


class Workbench:
    """A module to train on, reused for every client of a worker.

    Attributes:
        module: The module; its parameters are views of `vector`.
        layout: Where each parameter lies.
        vector: The trainable parameters `[size]`; `vector.grad` is the vector of all gradients.
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        check_module(module)
        keep_freed_memory()
        self.module = module.to(device)
        self.layout = VectorLayout.of(module)
        trainable = dict(module.named_parameters())
        first = trainable[self.layout.names[0]]
        dtype = functools.reduce(torch.promote_types, (trainable[n].dtype for n in self.layout.names))
        self.vector = nn.Parameter(torch.empty(self.layout.size, dtype=dtype, device=first.device))
        self.vector.grad = _zeros_like(self.vector)
        values, gradients = self.layout.split(self.vector.data), self.layout.split(self.vector.grad)
        for name in self.layout.names:  # each moves in before the next does, so that none is held twice
            trainable[name].data = values[name].copy_(trainable[name].detach())
            trainable[name].grad = gradients[name]
        own = set(self.layout.names)
        self._buffers = {n for n, _ in module.named_buffers()}
        self._ties = ties_of(module)
        self.constants: Tree = {n: t for n, t in _state(module).items() if n not in own}
        self._all = dict(module.named_buffers()) | self.constants  # those that are not saved, too
        self._fresh = {n: t.clone() for n, t in self._all.items()}

    @property
    def gradient(self) -> Tensor:
        """The vector of all gradients `[size]`."""
        assert self.vector.grad is not None  # made with the workbench
        return self.vector.grad

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes values for any of the module's parameters and buffers, by any of their names; others keep theirs."""
        own = self.parameters()
        with torch.no_grad():
            for key, value in tensors.items():
                name = self._ties.get(key, key)
                target = own[name] if name in own else self.constants[name]
                if target.shape != value.shape:
                    raise InputError(
                        f"{name!r} has shape {tuple(value.shape)}, but the model's is {tuple(target.shape)}"
                    )
                target.copy_(value)

    def reset(self) -> None:
        """Puts buffers back to what the model factory made, so that nothing of one client reaches the next."""
        with torch.no_grad():
            for name, value in self._fresh.items():
                self._all[name].copy_(value)

    def parameters(self) -> Tree:
        """Named views of the trainable parameters."""
        return self.layout.split(self.vector.data)

    def buffers(self) -> Tree:
        """Named views of the buffers, such as running statistics."""
        return {n: t for n, t in self.constants.items() if n in self._buffers}

    def tree(self) -> Tree:
        """Named views of everything: trainable parameters, frozen ones and buffers."""
        return self.parameters() | self.constants


class Benches:
    """The workbenches of one worker: one of the task's whole model, and one of each smaller model made of it.

    Each is made at its first use, so that a worker whose clients train small models alone never holds the whole one.

    Args:
        task: Makes the model, and says on which device.
        seed: The run's seed.

    Attributes:
        task: The same.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self._seed = seed
        self._whole: Workbench | None = None
        self._smaller: dict[Hashable, Workbench] = {}
        self._known: dict[Hashable, Any] = {}

    @property
    def whole(self) -> Workbench:
        """The whole model's; as the last user left it."""
        if self._whole is None:
            self._whole = Workbench(self._model(), self.task.device)
        return self._whole

    def smaller(self, key: Hashable, make: Callable[[nn.Module], nn.Module]) -> Workbench:
        """The workbench of a smaller model, its buffers as new.

        Args:
            key: The same for models that differ in their values alone.
            make: Makes the model of a whole one; called once a key.
        """
        if key not in self._smaller:
            if len(self._smaller) == _KEPT:
                self._smaller.pop(next(iter(self._smaller)))
            self._smaller[key] = Workbench(make(self._model()), self.task.device)
        bench = self._smaller[key]
        bench.reset()
        return bench

    def known(self, key: Hashable, find: Callable[[nn.Module], T]) -> T:
        """What `find` says of the whole model, which is asked once a key."""
        if key not in self._known:
            self._known[key] = find(self._model())
        found: T = self._known[key]
        return found

    def reset(self) -> None:
        """Puts the whole model's buffers back to new, if there is one."""
        if self._whole is not None:
            self._whole.reset()

    def _model(self) -> nn.Module:
        with keyed_global_rng(self._seed, "workbench"):
            return self.task.model()


def fresh_workbench(task: Task, rng: torch.Generator) -> Workbench:
    """A freshly initialised model on the CPU, where servers work; the same `rng` gives every method the same model.

    Raises:
        InputError: If the model cannot be judged with what the server holds.
    """
    seed = int(torch.randint(2**31, (), generator=rng))
    with keyed_global_rng(seed, "model"):
        bench = Workbench(task.model())
    if task.data.validation is None and has_static_norms(bench.module):
        raise InputError(
            "the model's static batch norms take their statistics from the server's examples, but data.validation is 0"
            " (nearest valid: 1; a few hundred serve better)"
        )
    return bench


def deployable(task: Task, model: Mapping[str, Tensor]) -> Tree:
    """A model under every name of the module's own `state_dict`, tied parameters under each of theirs."""
    with keyed_global_rng(0, "deployable"):
        bench = Workbench(task.model())
    bench.load(model)
    return dict(bench.module.state_dict())


def tied(task: Task, model: Mapping[str, Tensor]) -> Tree:
    """The same tensors, those of tied parameters under each of their names: what `load_state_dict` takes."""
    with keyed_global_rng(0, "deployable"):
        ties = ties_of(task.model())
    return dict(model) | {name: model[first] for name, first in ties.items() if name not in model and first in model}


def ties_of(module: nn.Module) -> dict[str, str]:
    """The further names in a module's `state_dict` of tied parameters and buffers, to the first one."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if first.setdefault(id(tensor), name) != name:
                found[name] = first[id(tensor)]
    saved = module.state_dict() if found else {}
    return {name: other for name, other in found.items() if name in saved}


def _state(module: nn.Module) -> Tree:
    seen: set[int] = set()
    tree: Tree = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        persistent = name in module.state_dict()
        if id(tensor) not in seen and persistent:
            seen.add(id(tensor))
            tree[name] = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
    return tree
