"""The groups of many networks, and what must hold for them."""

from __future__ import annotations

import pytest
import torch
import torchvision
from tests.channels import nets
from torch import nn

from fedfi.channels import discover
from fedfi.models import InputSpec
from fedfi.models.cnn import cnn
from fedfi.models.mlp import mlp
from fedfi.models.resnet18 import resnet18
from fedfi.models.roberta import roberta
from fedfi.models.smallcnn import small_cnn

SPEC = InputSpec("image", (3, 32, 32), 10)
SMALL = InputSpec("image", (3, 16, 16), 10)
models = torchvision.models


def test_mlp():
    """Two hidden layers: each is made by its weight's rows and bias and read by the next weight's columns."""
    model = mlp(InputSpec("tabular", (5,), 3), hidden=(8, 6), dropout=0.1)
    wiring = discover(model, nets.rows(2, 5))
    assert nets.named(wiring) == {
        "hidden1.weight": (8, {("hidden1.weight", 0): 1, ("hidden1.bias", 0): 1, ("hidden2.weight", 1): 1}),
        "hidden2.weight": (6, {("hidden2.weight", 0): 1, ("hidden2.bias", 0): 1, ("head.weight", 1): 1}),
    }
    assert [(m.name, m.axis, m.positions.flatten().tolist()) for m in wiring.outputs] == [
        ("head.weight", 0, [0, 1, 2]),
        ("head.bias", 0, [0, 1, 2]),
    ]
    assert {(f.name, f.axis) for f in wiring.frozen} == {("hidden1.weight", 1), ("head.weight", 0), ("head.bias", 0)}
    nets.check(wiring, model, nets.rows(2, 5))


@pytest.mark.parametrize(("bias", "norm"), [(False, "none"), (True, "none"), (False, "group")])
def test_cnn(bias, norm):
    """16 x 16 images leave 1 x 1 maps, 32 x 32 leave 5 x 5, so that a channel is read at 25 columns of fc1.

    GroupNorm has 16 groups of 2 of the 32 channels, and 32 of 2 of the 64: those are the units.
    """
    model = cnn(SPEC, bias=bias, norm=norm, width=0.5)
    wiring = discover(model, nets.images())
    pair = 2 if norm == "group" else 1
    found = nets.named(wiring)
    assert [units for units, _ in found.values()] == [16 // pair, 32 // pair, 256, 64]
    members = found["conv2.weight"][1]
    assert members["conv2.weight", 0] == pair
    assert members["fc1.weight", 1] == 25 * pair
    assert (("conv2.bias", 0) in members) == bias
    assert (("norm2.weight", 0) in members) == (norm == "group")
    first = next(m for m in wiring.groups[1].members if m.name == "fc1.weight")
    assert first.positions[1].tolist() == list(range(25 * pair, 50 * pair))
    nets.check(wiring, model, nets.images())


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_small_cnn(norm):
    model = small_cnn(SPEC, norm=norm, width=0.5)
    wiring = discover(model, nets.images())
    # 16, 32, 64 channels in GroupNorm groups of 2: 8, 16, 32 (the largest divisor up to 32).
    counts = [8, 16, 32, 96] if norm == "group" else [16, 32, 64, 96]
    assert [group.units for group in wiring.groups] == counts
    nets.check(wiring, model, nets.images())


@pytest.mark.parametrize("norm", ["batch", "static", "none", "group"])
def test_resnet18(norm):
    """One group for the stream of each of the four stages, and one inside each of the eight blocks."""
    model = resnet18(SMALL, norm=norm, width=0.25)
    wiring = discover(model, nets.images(16))
    found = nets.named(wiring)
    names = ["stem.conv.weight", "stage1.0.first.conv.weight", "stage1.1.first.conv.weight"]
    for stage in (2, 3, 4):
        names += [f"stage{stage}.0.{part}.conv.weight" for part in ("first", "second")]
        names.append(f"stage{stage}.1.first.conv.weight")
    assert list(found) == names
    widths = [16] * 3 + [32] * 3 + [64] * 3 + [128] * 3
    norm_groups = [8] * 3 + [16] * 3 + [32] * 6  # of two channels or more, at most 32
    assert [units for units, _ in found.values()] == (norm_groups if norm == "group" else widths)
    stream = {name for name, _ in found["stage2.0.second.conv.weight"][1] if name.endswith("conv.weight")}
    assert stream == {
        "stage2.0.second.conv.weight",
        "stage2.0.shortcut.conv.weight",
        "stage2.1.first.conv.weight",
        "stage2.1.second.conv.weight",
        "stage3.0.first.conv.weight",
        "stage3.0.shortcut.conv.weight",
    }
    if norm == "batch":
        assert ("stem.norm.running_var", 0) in found["stem.conv.weight"][1]
    nets.check(wiring, model, nets.images(16), widths=(0.25,), atol=5e-3)


def test_the_widths_of_heterofl():
    """ResNet-18 at 1, 1/2, 1/4, 1/8, 1/16: counted layer by layer, as the width w scales the channels exactly.

    Convolutions: 27 * 64 w + (4 * 64^2 + (64 + 128) * 128 + 2 * 128^2 + ...) * 9 w^2, and so on; instead of the
    sum by hand the model's own builder makes the network of that width.
    """
    model = resnet18(SPEC)
    wiring = discover(model, nets.images())
    total = 11_173_962
    assert wiring.parameters(wiring.full()) == total
    for width, share in ((1, 1), (1 / 2, 0.250), (1 / 4, 0.0628), (1 / 8, 0.0158), (1 / 16, 0.0040)):
        count = sum(p.numel() for p in resnet18(SPEC, width=width).parameters())
        assert wiring.parameters(wiring.prefix(width)) == count
        assert wiring.ratio_for(width) == count / total
        assert count / total == pytest.approx(share, abs=5e-4)
        assert wiring.ratio_for(wiring.width_for(wiring.ratio_for(width))) == wiring.ratio_for(width)
    small = wiring.shrink(model, wiring.prefix(0.25))
    fresh = resnet18(SPEC, width=0.25)
    assert {n: p.shape for n, p in small.state_dict().items()} == {n: p.shape for n, p in fresh.state_dict().items()}
    assert str(small) == str(fresh)


@pytest.mark.slow
def test_torchvision_resnet18():
    model = models.resnet18(num_classes=5)
    wiring = discover(model, nets.images())
    assert [group.units for group in wiring.groups] == [64] * 3 + [128] * 3 + [256] * 3 + [512] * 3
    nets.check(wiring, model, nets.images(), widths=(0.3,), atol=5e-3)


@pytest.mark.slow
def test_mobilenet_v2():
    """17 inverted residuals: the first has no expansion of its own, 7 widths of stream; a last convolution.

    Depthwise convolutions join their expansion. Groups: the stem's 32 channels go depthwise into block 1; the 7
    streams (16, 24, 32, 64, 96, 160, 320), 16 expansions, the last 1280: 25.
    """
    model = models.mobilenet_v2(num_classes=5)
    wiring = discover(model, nets.images())
    assert len(wiring.groups) == 1 + 7 + 16 + 1
    found = nets.named(wiring)
    assert [found[f"features.{i}.conv.{k}.weight"][0] for i, k in ((1, 1), (2, 2), (4, 2), (7, 2), (11, 2))] == [
        16, 24, 32, 64, 96,
    ]  # fmt: skip
    assert found["features.2.conv.0.0.weight"][1]["features.2.conv.1.0.weight", 0] == 1
    nets.check(wiring, model, nets.images(), widths=(0.5,), atol=5e-3)


def test_densenet():
    """Two blocks of two layers, growth 4: the stem, a bottleneck and a new part a layer, a transition: 1 + 8 + 1."""
    model = models.DenseNet(4, (2, 2), 8, num_classes=5)
    wiring = discover(model, nets.images())
    assert len(wiring.groups) == 1 + 2 * 4 + 1
    found = nets.named(wiring)
    units, members = found["features.denseblock1.denselayer1.conv2.weight"]
    assert units == 4
    assert {("features.denseblock1.denselayer2.conv1.weight", 1), ("features.transition1.conv.weight", 1)} <= set(
        members
    )
    nets.check(wiring, model, nets.images())


@pytest.mark.slow
def test_densenet121():
    """58 layers of a bottleneck and a new part, a stem, three transitions."""
    model = models.densenet121(num_classes=5)
    wiring = discover(model, nets.images())
    assert len(wiring.groups) == 2 * 58 + 1 + 3
    nets.check(wiring, model, nets.images(), widths=(0.5,), atol=2e-2)


@pytest.mark.slow
def test_vgg11_bn():
    """Eight convolutions and two hidden layers; the pool makes 7 x 7 maps, so 49 columns a channel."""
    model = models.vgg11_bn(num_classes=5)
    wiring = discover(model, nets.images())
    assert len(wiring.groups) == 8 + 2
    found = nets.named(wiring)
    assert found["features.25.weight"][1]["classifier.0.weight", 1] == 49
    nets.check(wiring, model, nets.images(), widths=(0.25,), atol=5e-3)


def vision_transformer():
    return models.VisionTransformer(16, 4, 2, 4, 16, 32, num_classes=5)


def test_vision_transformer():
    """A stream of 16, and for each of two layers 4 heads (of 3 x 4 rows, 4 columns) and 32 hidden units."""
    model = vision_transformer()
    wiring = discover(model, nets.images(16))
    found = nets.named(wiring)
    layer = "encoder.layers.encoder_layer_0"
    assert [units for units, _ in found.values()] == [16, 4, 32, 4, 32]
    assert found["conv_proj.weight"][1]["class_token", 2] == 1
    assert found["conv_proj.weight"][1]["encoder.pos_embedding", 2] == 1
    assert found[f"{layer}.self_attention.in_proj_weight"][1] == {
        (f"{layer}.self_attention.in_proj_weight", 0): 12,
        (f"{layer}.self_attention.in_proj_bias", 0): 12,
        (f"{layer}.self_attention.out_proj.weight", 1): 4,
    }
    assert found[f"{layer}.mlp.0.weight"][1][f"{layer}.mlp.3.weight", 1] == 1
    nets.check(wiring, model, nets.images(16), widths=(1.0, 0.5, 0.25))


def test_heads_that_no_longer_fill_the_embedding():
    """One head of four of size 4 beside 12 of 16 channels: `nn.MultiheadAttention` could not have that."""
    model = vision_transformer()
    wiring = discover(model, nets.images(16))
    units = wiring.prefix(0.75)
    for name in units:
        if "in_proj" in name:
            units[name] = torch.tensor([False, True, False, False])
    nets.check_small(wiring, nets.randomise(model).eval(), nets.images(16), units)


@pytest.mark.parametrize("first", [False, True])
def test_encoder_layers_of_torch(first):
    """The module's input is the stream, so that only heads and hidden units are free."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    wiring = discover(model, nets.rows(2, 5, 16))
    assert [group.units for group in wiring.groups] == [4, 32, 4, 32]
    nets.check(wiring, model, nets.rows(2, 5, 16))


TRANSFORMER = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "num_labels": 3,
    "max_position_embeddings": 20,
}


@pytest.mark.parametrize("kind", ["Roberta", "Bert"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_transformers(kind, attention, dtype):
    """The stream of 16; 4 heads of 4; 24 hidden units; the classifier's or pooler's 16."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(attn_implementation=attention, **TRANSFORMER)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    example = {"input_ids": nets.ids(50, 2, 7).to(dtype)}
    wiring = discover(model, example)
    assert [group.units for group in wiring.groups] == [16, 4, 24, 16]
    found = list(nets.named(wiring).values())
    assert sorted(found[1][1].values()) == [4] * 7
    assert found[0][1][f"{kind.lower()}.embeddings.position_embeddings.weight", 1] == 1
    assert wiring.outputs[0].positions.flatten().tolist() == [0, 1, 2]
    nets.check(wiring, model, example, widths=(0.5, 0.25))


def test_the_house_roberta():
    model = roberta(InputSpec("text", (7,), 3, vocabulary=50, padding=1), layers=1, hidden=16, heads=4, intermediate=24)
    wiring = discover(model, nets.ids(50, 2, 7))
    assert [group.units for group in wiring.groups] == [16, 4, 24, 16]
    nets.check(wiring, model, nets.ids(50, 2, 7), widths=(0.5, 0.25))


def test_tied_embedding():
    """The vocabulary is looked up and is the output; the stream and the hidden units are free."""
    model = nets.Tied()
    wiring = discover(model, nets.ids(11, 2, 5))
    assert nets.named(wiring) == {
        "embedding.weight": (8, {
            ("embedding.weight", 1): 1, ("hidden.weight", 1): 1, ("back.weight", 0): 1, ("back.bias", 0): 1,
        }),
        "hidden.weight": (12, {("hidden.weight", 0): 1, ("hidden.bias", 0): 1, ("back.weight", 1): 1}),
    }  # fmt: skip
    assert [(m.name, m.axis) for m in wiring.outputs] == [("embedding.weight", 0)]
    assert wiring.aliases["head.weight"] == "embedding.weight"
    nets.check(wiring, model, nets.ids(11, 2, 5))
    small = wiring.shrink(model, wiring.prefix(0.5))
    assert small.head.weight is small.embedding.weight
    assert wiring.take({"head.weight": model.head.weight}, wiring.prefix(0.5))["head.weight"].shape == (11, 4)


def test_depthwise():
    """Input j makes outputs 2 j and 2 j + 1, which move together with it."""
    model = nets.Depthwise()
    wiring = discover(model, nets.images(6))
    units, members = nets.named(wiring)["first.weight"]
    assert units == 6
    assert members[("deep.weight", 0)] == members[("norm.running_mean", 0)] == members[("last.weight", 1)] == 2
    assert ("deep.weight", 1) not in members
    nets.check(wiring, model, nets.images(6))


def test_channel_shuffle():
    """Four blocks of two channels. The shuffle only says where the next layer finds them."""
    model = nets.Shuffle()
    wiring = discover(model, nets.images(6))
    group = wiring.groups[0]
    assert group.units == 4
    places = next(m.positions for m in group.members if m.name == "third.weight")
    # Channel i of two halves of four goes to place 2 (i mod 4) + i div 4.
    expected = [sorted(2 * (i % 4) + i // 4 for i in (2 * j, 2 * j + 1)) for j in range(4)]
    assert places.tolist() == expected
    tree = nets.tensors(model)
    nets.check_slice(wiring, tree, wiring.prefix(0.5))


def test_concatenation_and_addition():
    """The third branch's ten channels are four of the left and six of the right."""
    model = nets.Concatenated()
    wiring = discover(model, nets.images(6))
    both = {group.name: next(m.positions for m in group.members if m.name == "both.weight") for group in wiring.groups}
    assert both["left.weight"].flatten().tolist() == [0, 1, 2, 3]
    assert both["right.weight"].flatten().tolist() == [4, 5, 6, 7, 8, 9]
    nets.check(wiring, model, nets.images(6))


def test_fused_attention():
    """Head h of three owns rows 4 h to 4 h + 3 of each third of the projection."""
    model = nets.Fused()
    wiring = discover(model, nets.rows(2, 5, 5))
    found = nets.named(wiring)
    assert [units for units, _ in found.values()] == [12, 3]
    rows = next(m.positions for m in wiring.groups[1].members if m.name == "qkv.weight")
    assert rows[1].tolist() == [12 * part + 4 + i for part in range(3) for i in range(4)]
    nets.check(wiring, model, nets.rows(2, 5, 5))


def test_gated():
    """Unit j is channels j and 4 + j; a norm without parameters learns its size too."""
    model = nets.Gated()
    wiring = discover(model, nets.rows(2, 5))
    assert wiring.groups[0].members[0].positions.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    nets.check(wiring, model, nets.rows(2, 5))


def test_halves_with_functions_of_their_own():
    """All eight channels look alike by their axes; the check parts those that go through the ReLU from the others."""
    model = nets.Halves()
    wiring = discover(model, nets.rows(4, 5))
    assert [(g.name, g.units) for g in wiring.groups] == [("first.weight", 4), ("first.weight#2", 4)]
    assert [g.members[0].positions.flatten().tolist() for g in wiring.groups] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    nets.check(wiring, model, nets.rows(4, 5), widths=(0.5,))


def test_what_is_not_understood_freezes():
    model = nets.Unknown()
    wiring = discover(model, nets.rows(2, 5))
    assert [group.name for group in wiring.groups] == ["second.weight"]
    reasons = {(f.name, f.axis): f.reason for f in wiring.frozen}
    assert "fft" in reasons["first.weight", 0]
    nets.check(wiring, model, nets.rows(2, 5))
