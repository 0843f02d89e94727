"""What `fedfi merge` writes says what it is, and `fedfi.read_merged` makes the network of it again."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from tests.cli.test_merging import SPEC, Net, parties, shared, upload, uploads

import fedfi as library
from fedfi.data import load
from fedfi.federation.checkpoint import serialised, tensors_from_file, tensors_to_file
from fedfi.models import build
from fedfi.oneshot.together import Together

__all__ = ["parties"]


def about(path):
    with safe_open(str(path), "pt") as file:
        return file.metadata()


def accuracy(network, path):
    data, _ = load(path)
    inputs, targets = data.fitted().examples().batch()
    with torch.no_grad():
        return float((network(inputs).argmax(1) == targets).float().mean())


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("average", "mlp"),
        ("fedfiot", "mlp"),
        ("pfnm", "grown mlp"),
        ("fedma", "grown mlp"),
        ("ensemble", "ensemble of mlp"),
        ("fedbens", "ensemble of mlp"),
    ],
)
def test_a_merged_file_is_read_back_with_the_score_that_was_printed(fedfi, parties, method, model):
    """The printed score is the accuracy of the network that the file gives."""
    files, out, judge = uploads(fedfi, parties, method=method), parties / "m.safetensors", str(parties / "v.npz")
    more = ["--set", "steps=2"] if method == "fedbens" else []
    code, printed, err = fedfi(
        "merge", *files, "--method", method, "-o", str(out), "--validate", judge, "--json", *more
    )
    assert code == 0, err
    found = about(out)
    assert (found["model"], found["method"], json.loads(found["options"])) == (model, method, {"hidden": [6]})
    network = library.read_merged(out)
    assert not network.training
    assert accuracy(network, judge) == pytest.approx(json.loads(printed)["score"])
    assert library.Inputs.read(out).spec == SPEC
    if model.startswith("grown"):
        width = network.hidden1.weight.shape[0]
        assert (network.hidden1.out_features, network.head.in_features) == (width, width)
    if model.startswith("ensemble"):
        logits = library.read_merged(out, combine="logits")
        assert isinstance(logits, Together)
        assert logits.combine == "logits"


def test_widths_that_differ_are_those_of_what_came_out(fedfi, parties):
    tensors_to_file(parties / "w0.safetensors", build("mlp", SPEC, {"hidden": (9,)}).state_dict())
    assert upload(fedfi, parties, 0, "--set", "model.hidden=[9]", method="otfusion")[0] == 0
    assert upload(fedfi, parties, 1, method="otfusion")[0] == 0
    files, out = [str(parties / f"u{i}.safetensors") for i in range(2)], parties / "m.safetensors"
    assert fedfi("merge", *files, "--method", "otfusion", "-o", str(out))[0] == 0
    assert json.loads(about(out)["options"]) == {"hidden": [6]}
    assert library.read_merged(out).hidden1.weight.shape == (6, 64)


@pytest.mark.parametrize("method", ["average", "ensemble"])
def test_code_is_run_where_it_is_named_and_ties_stay(fedfi, parties, method):
    files = [shared(fedfi, parties, i, "--for", method)[0] for i in range(2)]
    name, out = "tests.cli.test_merging:net", parties / "m.safetensors"
    code, _, err = fedfi("merge", *files, "--model", name, "--method", method, "-o", str(out))
    assert code == 0, err
    with pytest.raises(ValueError, match=f"its model is code, '{name}'; to run it say model={name}"):
        library.read_merged(out)
    network = library.read_merged(out, model=name)
    for each in network.networks if method == "ensemble" else [network]:
        assert isinstance(each, Net)
        assert each.a.weight is each.b.weight


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "its format is 'other', expected 'fedfi-merged-1'"),
        ({"model": "cnn"}, "unknown option 'hidden'"),
        ({"model": "grown mlp", "options": '{"hidden": [9]}'}, "has 625"),  # 64 x 9 + 9 + 9 x 4 + 4
        ({"model": "ensemble of mlp"}, "its tensors are none of 'ensemble of mlp'"),
        ({"options": "[1]"}, "its options are"),
        ({"options": '{"hidden": [1000000000]}'}, "is more than its 418 parameters"),
        ({"spec": "{}"}, "its spec is '{}'"),
        ({"model": "roberta", "options": '{"checkpoint": "x"}'}, "its model is loaded from checkpoint"),
    ],
)
def test_what_no_merge_writes_is_refused(fedfi, parties, change, said):
    out = parties / "m.safetensors"
    assert fedfi("merge", *uploads(fedfi, parties, method="average"), "--method", "average", "-o", str(out))[0] == 0
    out.write_bytes(serialised(tensors_from_file(out), about(out) | change))
    with pytest.raises(library.InputError) as caught:
        library.read_merged(out)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(out))


def test_other_files_are_said_to_be_others(fedfi, parties):
    upload(fedfi, parties, 0)
    for name, said in (
        ("u0.safetensors", "is an upload of fedfi fisher, expected a file of fedfi merge"),
        ("w0.safetensors", "is not a file of fedfi merge: its format is None"),
        ("v.npz", "is not a file of fedfi merge: "),
        ("nowhere", "nowhere"),
    ):
        with pytest.raises(ValueError, match=said):
            library.read_merged(parties / name)
