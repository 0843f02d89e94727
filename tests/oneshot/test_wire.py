"""Matrices on the uplink: within the bytes of a plain model, and true over decades of eigenvalues."""

from __future__ import annotations

import pytest
import torch
from tests.oneshot import cases

from fedfi.federation.task import cross_entropy
from fedfi.federation.workbench import Workbench
from fedfi.oneshot.statistics import measure
from fedfi.oneshot.uploads import Upload
from fedfi.oneshot.wire import Form


def form(name, kinds, bits=16):
    where = cases.server(cases.spec_of(name), lambda: cases.network(name), 12)
    return where, Form.of(Workbench(cases.network(name)), where.task, kinds, bits)


@pytest.mark.parametrize("kind", ["kfac", "exact-kfac", "gram"])
@pytest.mark.parametrize("name", ["mlp", "cnn with biases"])
def test_matrices_fit_into_the_size_of_a_plain_model(name, kind):
    where, of = form(name, (kind,))
    found = measure((kind,), cases.network(name), where.examples, cross_entropy)
    model = cases.tree_of(cases.network(name))
    packet = of.pack(Upload("p", model, tuple(of.layout.names), 12, found), {})
    matrices = sum(t.numel() * t.element_size() for n, t in packet.tensors.items() if n.startswith(kind))
    least = sum(side + 4 for side, _ in of.ranks[kind].values())  # a rank of one each, however small the layer
    assert matrices <= max(2 * of.layout.size, least)
    back = of.unpack(packet, "p").measured(kind)
    assert {n: t.shape for n, t in back.items()} == {n: t.shape for n, t in found[kind].items()}


def test_small_eigenvalues_survive():
    """Of a matrix with eigenvalues 1, 1e-2, 1e-4, 1e-6 in random directions each is back to within 3 %."""
    _, of = form("mlp", ("gram",))
    name, (side, rank) = max(of.ranks["gram"].items(), key=lambda item: item[1][1])
    assert rank >= 4
    basis = torch.linalg.qr(torch.randn(side, 4, generator=torch.Generator().manual_seed(0)).double()).Q
    values = torch.tensor([1, 1e-2, 1e-4, 1e-6]).double()
    grams = {n: torch.eye(s) for n, (s, _) in of.ranks["gram"].items()}
    grams[name] = ((basis * values) @ basis.T).float()
    model = cases.tree_of(cases.network("mlp"))
    back = of.unpack(of.pack(Upload("p", model, tuple(of.layout.names), 1, {"gram": grams}), {}), "p")
    found = torch.linalg.eigvalsh(back.measured("gram")[name].double()).flip(0)[:4]
    torch.testing.assert_close(found[:3], values[:3], rtol=0.03, atol=0)


def test_small_layers_are_whole():
    """One rank for all: of a small matrix, such as that of the logits' layer, nothing is cut."""
    _, of = form("cnn with biases", ("exact-kfac",))
    ranks = of.ranks["exact-kfac"]
    top = max(rank for _, rank in ranks.values())
    assert all(rank == min(side, top) for side, rank in ranks.values())
    assert ranks["head/outputs"] == (4, 4)
