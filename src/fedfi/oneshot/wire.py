"""How uploads travel: models and diagonals in 16 bits, matrices by low rank in 8, within the size of a plain model.

A model of d trained parameters is d 32-bit numbers. In 16 bits it is half of that, which leaves the other half for a
diagonal (16 bits a number), or for matrices: two bytes a parameter are spent on roots R (8 bits a number and a scale a
column, `M ~ R R^T`), cut to one rank for all. So an upload is no longer than FedAvg's; headers are shorter, since
everything of a kind is one tensor. Columns have scales of their own because eigenvalues span decades: under one scale,
those below a ten-thousandth of the largest would be noise.

Diagonals of the Fisher information span many decades. What is quantised is their fourth root, which 16 linear steps
resolve down to 1e-18 of the largest value; taken raw, most entries would be zero. (FedFiOT says "quantized layer-wise
to 16 bits", and tunes its exponent on the server from one upload; both hold here.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.packet import Layout, Packet, PacketError, Scalar, Tree
from fedfi.federation.task import Task
from fedfi.federation.workbench import VectorLayout, Workbench
from fedfi.models.norms import never_negative
from fedfi.numerics.kfac import root
from fedfi.numerics.quantization import Quantized, dequantize, quantize
from fedfi.oneshot.statistics import KINDS, matrix_sizes
from fedfi.oneshot.uploads import Upload

Bits = Literal[16, 32]
_BUFFER = "buffer:"
_SCALE = 4  # bytes of a column's scale
_TEMPER = 4  # diagonals travel as their fourth root
_MOST = 1e12  # of a parameter or a buffer: beyond it squares and sums of squares leave float32
_MOST_EXAMPLES = 1e12


@dataclass(frozen=True, eq=False)
class Form:
    """What an upload is made of.

    Attributes:
        layout: The trained parameters.
        buffers: A buffer of each name.
        constants: Values of frozen parameters, which do not travel.
        kinds: The statistics.
        bits: Of a parameter and of a diagonal's number; 32 sends everything as it is.
        ranks: For each kind of matrices, the side and the rank of each.
        classes: Number of classes.
        floors: Buffers that hold no negative number, such as variances.
    """

    layout: VectorLayout
    buffers: Tree
    constants: Tree
    kinds: tuple[str, ...]
    bits: Bits
    ranks: Mapping[str, Mapping[str, tuple[int, int]]]
    classes: int
    floors: frozenset[str] = frozenset()

    @staticmethod
    def of(bench: Workbench, task: Task, kinds: tuple[str, ...], bits: Bits) -> Form:
        """The form of uploads of a workbench's model."""
        example = task.data.spec.example().to(task.device)
        matrices = [kind for kind in kinds if KINDS[kind].form == "matrices"]
        bench.module.eval()
        ranks = {kind: _ranks(matrix_sizes(kind, bench.module, example), bits) for kind in matrices}
        buffers = {n: t.clone() for n, t in bench.buffers().items()}
        constants = {n: t.clone() for n, t in bench.constants.items() if n not in buffers}
        floors = frozenset(never_negative(bench.module) & buffers.keys())
        return Form(bench.layout, buffers, constants, kinds, bits, ranks, task.data.spec.classes, floors)

    def layout_of(self, scalars: Mapping[str, type[Scalar]]) -> Layout:
        """What a packet of this form must look like, besides these scalars."""
        tensors: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        diagonals = [kind for kind in self.kinds if KINDS[kind].form == "diagonal"]
        count = len(self.layout.names)
        for name in ("model", *diagonals):
            dtype = torch.int16 if self.bits == 16 else torch.float32
            tensors[name] = (self.layout.size,), dtype
            if self.bits == 16:
                tensors[f"{name}/scales"] = (count,), torch.float32
        for kind, ranks in self.ranks.items():
            for name, (side, rank) in ranks.items():
                full = self.bits == 32
                tensors[f"{kind}:{name}"] = (side, side if full else rank), torch.float32 if full else torch.uint8
            if self.bits == 16:
                tensors[f"{kind}/scales"] = (sum(rank for _, rank in ranks.values()),), torch.float32
        if "classes" in self.kinds:
            tensors["classes"] = (self.classes,), torch.int64
        tensors |= {_BUFFER + n: (tuple(t.shape), t.dtype) for n, t in self.buffers.items()}
        least = {f"{name}/scales": 0.0 for name in ("model", *diagonals, *self.ranks)} | dict.fromkeys(diagonals, 0.0)
        least |= {_BUFFER + n: 0.0 for n in self.floors} | {"classes": 0.0, "examples": 1}
        most = self._most(tensors) | {"examples": _MOST_EXAMPLES, "classes": _MOST_EXAMPLES}
        return Layout(tensors, scalars, least=least, most=most, also=self._check_counts)

    def _most(self, tensors: Mapping[str, object]) -> dict[str, float]:
        """The largest magnitude of what travels: of parameters, their squares, and roots of these."""
        found: dict[str, float] = {}
        for name in tensors:
            kind = "model" if name.startswith(_BUFFER) else re.split("[:/]", name)[0]
            if kind == "classes" or (self.bits == 16 and not name.startswith(_BUFFER) and not name.endswith("/scales")):
                continue  # codes
            form = "model" if kind == "model" else KINDS[kind].form
            power = 1.0 if form == "model" else 2.0
            if self.bits == 16 and form != "model":
                power /= _TEMPER if form == "diagonal" else 2
            found[name] = _MOST**power
        return found

    def _check_counts(self, packet: Packet, sender: str) -> None:
        counts, examples = packet.tensors.get("classes"), packet.scalars.get("examples")
        if counts is not None and int(counts.sum()) != examples:
            raise PacketError(
                f"client {sender!r}: tensor 'classes' counts {int(counts.sum())} examples, expected {examples}"
            )

    def sent(self) -> Tree:
        """The buffers as the network was made with, by the names that they travel by."""
        return {_BUFFER + n: t for n, t in self.buffers.items()}

    def pack(self, upload: Upload, scalars: Mapping[str, Scalar]) -> Packet:
        """The packet of an upload; `examples` joins the scalars."""
        tensors: Tree = {}
        self._pack_vector(tensors, "model", upload.model)
        for kind in self.kinds:
            found = upload.measured(kind)
            if KINDS[kind].form == "diagonal":
                self._pack_vector(tensors, kind, {n: t if self.bits == 32 else _tempered(t) for n, t in found.items()})
            elif KINDS[kind].form == "counts":
                tensors[kind] = found["counts"]
            else:
                self._pack_matrices(tensors, kind, found)
        tensors |= {_BUFFER + n: upload.model[n].clone() for n in self.buffers}
        return Packet(tensors, {**scalars, "examples": upload.examples})

    def unpack(self, packet: Packet, party: str) -> Upload:
        """The upload that a packet holds, as the server knows it."""
        tensors = packet.tensors
        model = self._unpack_vector(tensors, "model")
        model |= {n: t.clone() for n, t in self.constants.items()}
        model |= {n: tensors[_BUFFER + n].clone() for n in self.buffers}
        statistics: dict[str, Tree] = {}
        for kind in self.kinds:
            if KINDS[kind].form == "diagonal":
                vector = self._unpack_vector(tensors, kind)
                statistics[kind] = vector if self.bits == 32 else {n: t.pow(_TEMPER) for n, t in vector.items()}
            elif KINDS[kind].form == "counts":
                statistics[kind] = {"counts": tensors[kind].clone()}
            else:
                statistics[kind] = self._unpack_matrices(tensors, kind)
        return Upload(party, model, tuple(self.layout.names), int(packet.scalars["examples"]), statistics)

    def _pack_vector(self, tensors: Tree, name: str, tree: Mapping[str, Tensor]) -> None:
        if self.bits == 32:
            tensors[name] = self.layout.join(tree).float().clone()
            return
        coded = [quantize(tree[n].float(), "linear16") for n in self.layout.names]
        tensors[name] = torch.cat([c.codes.flatten() for c in coded])
        tensors[f"{name}/scales"] = torch.tensor([c.scale for c in coded])

    def _unpack_vector(self, tensors: Mapping[str, Tensor], name: str) -> Tree:
        parts = self.layout.split(tensors[name])
        if self.bits == 32:
            return {n: t.clone() for n, t in parts.items()}
        scales = tensors[f"{name}/scales"].tolist()
        return {n: dequantize(Quantized(t, s, "linear16")) for (n, t), s in zip(parts.items(), scales, strict=True)}

    def _pack_matrices(self, tensors: Tree, kind: str, found: Tree) -> None:
        scales = []
        for name, (_, rank) in self.ranks[kind].items():
            if self.bits == 32:
                tensors[f"{kind}:{name}"] = found[name].float().contiguous()
                continue
            columns = root(found[name].float(), rank)
            scales.append(columns.abs().amax(0))
            shares = columns / scales[-1].clamp(min=torch.finfo(torch.float32).tiny)
            tensors[f"{kind}:{name}"] = quantize(shares.clamp(-1, 1), "linear8").codes
        if self.bits == 16:
            tensors[f"{kind}/scales"] = torch.cat(scales) if scales else torch.zeros(0)

    def _unpack_matrices(self, tensors: Mapping[str, Tensor], kind: str) -> Tree:
        names = [f"{kind}:{name}" for name in self.ranks[kind]]
        if self.bits == 32:
            return {n.removeprefix(f"{kind}:"): tensors[n].clone() for n in names}
        found = {}
        scales = tensors[f"{kind}/scales"].split([rank for _, rank in self.ranks[kind].values()])
        for name, scale in zip(names, scales, strict=True):
            r = dequantize(Quantized(tensors[name].contiguous(), 1.0, "linear8")) * scale
            found[name.removeprefix(f"{kind}:")] = r @ r.T
        return found


def _tempered(value: Tensor) -> Tensor:
    return value.double().pow(1 / _TEMPER).float()


def _ranks(sizes: Mapping[str, tuple[int, int]], bits: Bits) -> dict[str, tuple[int, int]]:
    """Sides and ranks: the largest rank, the same for all, whose roots and scales cost two bytes a parameter.

    Small matrices are then whole, such as that of the layer which makes the logits, where every direction counts.
    """
    sides = [side for side, _ in sizes.values()]
    if bits == 32:
        return {name: (side, side) for name, (side, _) in sizes.items()}
    layers = {name.partition("/")[0]: count for name, (_, count) in sizes.items()}
    budget = 2 * sum(layers.values())
    rank = max(sides, default=1)
    while rank > 1 and sum(min(side, rank) * (side + _SCALE) for side in sides) > budget:
        rank -= 1
    return {name: (side, min(side, rank)) for name, (side, _) in sizes.items()}
