import sys
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedfi.errors import InputError
from fedfi.models import InputSpec, build
from fedfi.models.pools import norm_parameter_names, selection_pools

TEXT = InputSpec("text", (12,), 4, vocabulary=50, padding=0)
SMALL = {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 24}


@pytest.fixture
def model():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return build("roberta", TEXT, {**SMALL, "dropout": 0.0})


def ids(*lengths):
    """Texts of some lengths ``[texts, 12]``, padded with 0."""
    rows = torch.randint(1, 50, (len(lengths), 12), generator=torch.Generator().manual_seed(1))
    return rows.where(torch.arange(12) < torch.tensor(lengths)[:, None], 0).to(torch.int32)


def test_parameters(model):
    """Embeddings: 50 words, 13 positions (12 from id 1 on), 1 type, of 16; a norm of 32. A layer: 4*17*16
    attention, 17*24 + 25*16 feed-forward, 2 norms of 32. Head: 17*16 + 17*4.
    """
    layer = 4 * 17 * 16 + 17 * 24 + 25 * 16 + 2 * 32
    expected = (50 + 13 + 1) * 16 + 32 + 2 * layer + 17 * 16 + 17 * 4
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_any_padding_id_and_the_full_length(padding):
    pytest.importorskip("transformers")
    model = build("roberta", replace(TEXT, padding=padding), SMALL)
    assert model(torch.full((3, 12), 9)).shape == (3, 4)


def test_padding_does_not_matter(model):
    """A text alone at its own length has the logits it has padded, beside others."""
    batch = ids(12, 5, 1)
    logits = model(batch)
    torch.testing.assert_close(logits[1:2], model(batch[1:2, :5]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(logits[2:3], model(batch[2:3, :1]), atol=1e-6, rtol=1e-5)


def test_an_empty_text_is_finite(model):
    logits = model(ids(0, 3))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_gradients_per_example_vectorise(model):
    batch, labels = ids(12, 5, 0), torch.tensor([0, 3, 1])
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x, y):
        return functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    vectorised = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, batch, labels)
    for row in range(3):
        single = grad(loss)(parameters, batch[row], labels[row])
        for name, gradient in single.items():
            torch.testing.assert_close(vectorised[name][row], gradient, atol=1e-6, rtol=1e-4)


def test_pool(model):
    """Two embeddings apart from each other; a layer has 6 linear layers. Norms: 1 and 2 a layer."""
    positions, words, pool = selection_pools(model)
    assert [*positions, *words] == [f"network.roberta.embeddings.{n}_embeddings.weight" for n in ("position", "word")]
    assert len(pool) == 2 * 2 * 6
    assert len(norm_parameter_names(model)) == 2 * (1 + 2 * 2)
    assert not [name for name in pool if "LayerNorm" in name]


def test_checkpoint(model, tmp_path):
    """Loaded from a folder, the network is the same, and in training mode as a new one."""
    model.network.save_pretrained(tmp_path)
    loaded = build("roberta", TEXT, {"checkpoint": str(tmp_path), "dropout": 0.0})
    assert loaded.training
    torch.testing.assert_close(loaded(ids(12, 5)), model(ids(12, 5)))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"vocabulary": 51}, {}, "has 50 token ids and pads with 0, but the data have 51 and pad with 0"),
        ({"padding": 1}, {}, "pads with 0, but the data have 50 and pad with 1"),
        ({"shape": (13,)}, {}, "takes at most 12 tokens, but the data have 13"),
        ({"classes": 5}, {}, "cannot be loaded"),
        ({}, {"layers": 2}, "layers is the checkpoint's own"),
    ],
)
def test_a_checkpoint_that_does_not_fit(model, tmp_path, change, options, message):
    model.network.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        build("roberta", replace(TEXT, **change), {"checkpoint": str(tmp_path), **options})
    assert "\n" not in str(caught.value)


def test_a_pickled_checkpoint_is_refused(model, tmp_path):
    model.network.config.save_pretrained(tmp_path)
    torch.save(model.network.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        build("roberta", TEXT, {"checkpoint": str(tmp_path)})


def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is a 'bert', not a 'roberta'"):
        build("roberta", TEXT, {"checkpoint": str(tmp_path)})


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (InputSpec("tabular", (3,), 2), {}, r"needs text \(tokens,\), got tabular"),
        (replace(TEXT, vocabulary=None), {}, "a vocabulary and a padding id"),
        (replace(TEXT, padding=50), {}, "below the vocabulary, 50, got 50"),
        (TEXT, {"hidden": 130}, "multiple of heads = 4, got 130"),
        (TEXT, {"layers": 0}, "layers = 0: must be at least 1"),
        (TEXT, {"dropout": 1.5}, r"dropout = 1.5: must be below 1"),
    ],
)
def test_errors(spec, options, message):
    with pytest.raises(InputError, match=message):
        build("roberta", spec, options)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'fedfi\[text\]'"):
        build("roberta", TEXT, {})
