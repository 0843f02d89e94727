from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.channels import nets

from fedfi.cli.exporting import _program
from fedfi.data.inputs import Inputs
from fedfi.errors import InputError
from fedfi.federation.checkpoint import tensors_from_file
from fedfi.models import InputSpec

STRUCTURED = ("run", "exp.toml", "--set", "algorithm.name=heterofl", "--set", "algorithm.ratio=width", "-q", "--out")


def test_a_structured_level_is_a_smaller_dense_network(file: Path, fedfi) -> None:
    """At width .25 the hidden layer of 8 keeps 2: 64 x 2 + 2 + 2 x 10 + 10 = 160 parameters."""
    assert fedfi(*STRUCTURED, "a")[0] == 0
    code, out, err = fedfi("export", "a", "--capacity", "0.25", "-o", "small.safetensors")
    assert (code, err) == (0, "")
    assert out == "small.safetensors: 160 parameters, 160 of them not zero, after round 2\n"
    whole, small = tensors_from_file(Path("a/model.safetensors")), tensors_from_file(Path("small.safetensors"))
    assert small["hidden1.weight"].equal(whole["hidden1.weight"][:2] / 0.25)  # the scaler's division, folded
    assert small["head.weight"].equal(whole["head.weight"][:, :2])
    network = torch.nn.Sequential()
    for name, layer in {
        "flatten": torch.nn.Flatten(),
        "hidden1": torch.nn.Linear(64, 2),
        "relu1": torch.nn.ReLU(),
        "head": torch.nn.Linear(2, 10),
    }.items():
        network.add_module(name, layer)
    network.load_state_dict(small)  # strictly
    with safe_open("small.safetensors", "pt") as content:
        assert content.metadata()["capacity"] == "0.25"


@pytest.mark.parametrize(
    ("tables", "keeper"),
    [
        ('name = "fedavg"\nencrypted = { encryption = { enabled = false } }\n', "algorithm.encrypted"),
        ('name = "he-fedavg"\nencryption = { enabled = false }\n', "algorithm 'he-fedavg'"),
    ],
)
def test_what_keeps_the_model_from_the_server_is_named(tables: str, keeper: str, tmp_path: Path, fedfi) -> None:
    (tmp_path / "kept.toml").write_text(
        'rounds = 1\n[data]\nname = "breast_cancer"\nclients = 4\n[model]\nname = "mlp"\nhidden = [4]\n'
        f"[train]\nsteps = 1\n[algorithm]\n{tables}"
    )
    assert fedfi("run", str(tmp_path / "kept.toml"), "-q", "--out", str(tmp_path / "kept"))[0] == 0
    code, _, err = fedfi("export", str(tmp_path / "kept"), "-o", "kept.safetensors")
    assert code == 2
    assert f"under {keeper} trained models are the clients' own" in err


def test_a_program_runs_in_plain_pytorch(file: Path, fedfi) -> None:
    fedfi(*STRUCTURED, "a")
    fedfi("export", "a", "--capacity", "0.25", "-o", "small.safetensors", "-q")
    assert fedfi("export", "a", "--capacity", "0.25", "-o", "small.pt2", "-q") == (0, "", "")
    code = (
        "import sys, torch\n"
        "module = torch.export.load('small.pt2').module()\n"
        "x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))\n"
        "torch.save(module(x), 'out.pt')\n"
        "assert 'fedfi' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    small = tensors_from_file(Path("small.safetensors"))
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1)).flatten(1)
    hidden = torch.relu(x @ small["hidden1.weight"].T + small["hidden1.bias"])
    expected = hidden @ small["head.weight"].T + small["head.bias"]
    torch.testing.assert_close(torch.load("out.pt", weights_only=True), expected)


GROUPED = """
from torch import nn


def net(spec, width=16, groups=4):
    head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, spec.classes))
    stem, deep = nn.Conv2d(1, width, 3), nn.Conv2d(width, width, 3, groups=width)
    return nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (8, 8)), stem, nn.GroupNorm(groups, width), deep, head)
"""


def test_what_no_shape_shows_is_in_the_file(file: Path, fedfi, monkeypatch) -> None:
    """A norm of 4 groups keeps 2 at half the width. Loaded into a network with 4, it would compute something else."""
    Path("grouped.py").write_text(GROUPED)
    sets = ("--set", 'model={name="grouped:net"}', "--set", "algorithm.scaler=false")
    sets += ("--set", 'algorithm.capacities={"1.0"=0.5,"0.5"=0.5}')
    assert fedfi(*STRUCTURED, "a", *sets)[0] == 0
    assert fedfi("export", "a", "--capacity", "0.5", "-o", "small.safetensors", "-q") == (0, "", "")
    assert fedfi("export", "a", "--capacity", "0.5", "-o", "small.pt2", "-q") == (0, "", "")
    assert fedfi("export", "a", "--capacity", "1", "-o", "whole.safetensors", "-q") == (0, "", "")
    with safe_open("whole.safetensors", "pt") as content:
        assert "modules" not in content.metadata()
    with safe_open("small.safetensors", "pt") as content:
        changed = json.loads(content.metadata()["modules"])
    assert changed["3"] == {"num_groups": 2, "num_channels": 8}
    assert changed["4"] == {"in_channels": 8, "out_channels": 8, "groups": 8}

    monkeypatch.syspath_prepend(".")
    made = importlib.import_module("grouped").net(InputSpec("image", (1, 8, 8), 10), width=8)  # 4 groups, as before
    made.load_state_dict(tensors_from_file(Path("small.safetensors")))
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = torch.export.load("small.pt2").module()(x)
    assert not torch.allclose(made(x), expected)
    for path, attributes in changed.items():
        for name, value in attributes.items():
            setattr(made.get_submodule(path), name, value)
    torch.testing.assert_close(made(x), expected)


def test_an_unstructured_level_has_zeros(file: Path, fedfi) -> None:
    """ceil(.25 x 610) = 153 of 64 x 8 + 8 + 8 x 10 + 10 = 610 parameters."""
    fedfi("run", file, "--out", "a", "-q")
    code, out, _ = fedfi("export", "a", "--capacity", "0.250", "-o", "small.safetensors")
    assert code == 0
    assert out == "small.safetensors: 610 parameters, 153 of them not zero, after round 2\n"


def test_without_a_level_it_is_the_whole_model(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    before = sorted(p.name for p in Path("a").rglob("*"))
    assert fedfi("export", "a", "-o", "deep/whole.safetensors", "-q") == (0, "", "")
    whole, saved = tensors_from_file(Path("deep/whole.safetensors")), tensors_from_file(Path("a/model.safetensors"))
    assert all(whole[n].equal(saved[n]) for n in saved)
    assert sorted(p.name for p in Path("a").rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "a", "--capacity", "0.3", "-o", "x.safetensors"), "unknown level '0.3'; did you mean '0.25'?"),
        (("export", "a", "--capacity", "-1", "-o", "x.safetensors"), "unknown level '-1'; did you mean '0.25'?"),
        (("export", "a", "--capacity", "0.25", "-o", "x.onnx"), "--out x.onnx: unknown kind of file '.onnx'"),
        (("export", "nowhere", "-o", "x.safetensors"), "nowhere: is not a run directory"),
        (("export", "b", "--capacity", "0.25", "-o", "x.safetensors"), "fedavg makes no submodels"),
    ],
)
def test_what_cannot_be_exported_is_said(file: Path, fedfi, arguments, said) -> None:
    fedfi("run", file, "--out", "a", "-q")
    if arguments[1] == "b":
        text = Path("exp.toml").read_text().replace('"fedfibos"', '"fedavg"')
        Path("exp.toml").write_text("\n".join(line for line in text.splitlines() if "capacities" not in line))
        assert fedfi("run", file, "--out", "b", "-q")[0] == 0
    code, _, err = fedfi(*arguments)
    assert code == 2
    assert said in err
    assert not Path("x.safetensors").exists()


def test_what_is_exported_says_how_inputs_are_made(file: Path, fedfi) -> None:
    assert fedfi(*STRUCTURED, "a")[0] == 0
    known = json.loads(Path("a/inputs.json").read_text())
    assert (known["kind"], known["shape"], known["pixels"], len(known["mean"])) == ("image", [1, 8, 8], "uint8", 1)
    for name, level in (("whole.safetensors", ()), ("small.safetensors", ("--capacity", "0.25")), ("whole.pt2", ())):
        assert fedfi("export", "a", *level, "-o", name, "-q") == (0, "", "")
        assert Inputs.read(name).record() == Inputs.read("a").record() == known
    torch.export.save(torch.export.load("whole.pt2"), "bare.pt2")
    for bare, said in (("bare.pt2", "says nothing of a model's inputs"), ("exp.toml", "is damaged")):
        with pytest.raises(InputError, match=said):
            Inputs.read(bare)


@pytest.mark.parametrize("name", ["local", "he-fedavg", "fedfihe"])
def test_a_run_without_a_trained_model_exports_none(file: Path, fedfi, name: str) -> None:
    text = "\n".join(line for line in file.read_text().splitlines() if "capacities" not in line)
    file.write_text(text.replace('"fedfibos"', f'"{name}"').replace("rounds = 2", "rounds = 1"))
    assert fedfi("run", file, "--out", "a", "-q")[0] == 0
    code, out, err = fedfi("export", "a", "-o", "x.safetensors")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"a: has no trained model to export: under algorithm '{name}'")
    assert not Path("x.safetensors").exists()


def test_a_run_is_only_read_and_folders_of_outputs_are_made(file: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    fedfi("run", file, "--out", "a", "-q")
    opened, real = [], os.open

    def watched(path, flags, *rest, **more):
        if str(path).startswith("a/"):
            opened.append(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    assert fedfi("export", "a", "-o", "new/deep/x.safetensors", "-q") == (0, "", "")
    assert opened  # the lock, and the rows of the server
    assert not any(opened)
    assert fedfi("report", "a", "-o", "new/er/page.html", "-q") == (0, "", "")
    assert Path("new/er/page.html").exists()
    code, _, err = fedfi("report", "a", "-o", "exp.toml/page.html")
    assert (code, err) == (2, "exp.toml/page.html: cannot be written: File exists\n")


def test_a_program_with_static_norms_does_not_depend_on_the_batch(file: Path, fedfi) -> None:
    changes = ["model.name=resnet18", "model.width=0.05", "model.norm=static", "data.validation=50"]
    changes += ["algorithm.name=heterofl", "algorithm.ratio=width"]
    text = file.read_text().replace("hidden = [8]\n", "")
    file.write_text(text)
    sets = [part for change in changes for part in ("--set", change)]
    assert fedfi("run", file, *sets, "--out", "a", "-q")[0] == 0
    assert fedfi("export", "a", "-o", "whole.pt2", "-q") == (0, "", "")
    module = torch.export.load("whole.pt2").module()
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(module(x)[:2], module(x[:2]))


@pytest.mark.parametrize("name", ["fedfibos", "heterofl", "fjord"])
def test_a_level_without_clients(file: Path, fedfi, name) -> None:
    """A share of 0 defines a level that nobody trains at: it is not judged, and can be exported as any other."""
    sets = [
        "--set",
        f"algorithm.name={name}",
        "--set",
        'algorithm.capacities={ "1.0" = 1.0, "0.5" = 0, "0.3333333" = 0 }',
    ]
    assert fedfi("run", file, *sets, "--out", "a", "-q")[0] == 0
    assert "levels/0.5/accuracy" not in Path("a/metrics.jsonl").read_text()
    for level in ("0.5", "0.50", "0.333333", "0.3333333"):
        code, out, err = fedfi("export", "a", "--capacity", level, "-o", "small.safetensors")
        assert (code, err) == (0, "")
        assert "after round 2" in out
    code, _, err = fedfi("export", "a", "--capacity", "half", "-o", "other.safetensors")
    assert code == 2
    assert "--capacity: unknown level 'half'" in err
    assert "0.333333, 0.5, 1)" in err


EDITS = [
    ("    8,", "    9,", "model.hidden = [9], the run began with [8]"),
    ('"0.25" = 0.5', '"0.125" = 0.5', 'algorithm.capacities."0.25" is missing, the run began with 0.5'),
    ('"0.25" = 0.5', '"0.25" = 0.5\n"0.125" = 0', 'algorithm.capacities."0.125" = 0.0, the run began without it'),
    ('ratio = "params"', 'ratio = "width"', "algorithm.ratio = 'width', the run began with 'params'"),
]


def test_a_run_toml_that_was_edited(file: Path, fedfi) -> None:
    """The checkpoint knows how the run began; the error names file and key, once."""
    fedfi("run", file, "--out", "a", "-q")
    path = Path("a/run.toml")
    text = path.read_text()
    for old, new, said in EDITS:
        assert old in text
        path.write_text(text.replace(old, new))
        for arguments in (("export", "a", "-o", "x.safetensors"), ("resume", "a", "--rounds", "3")):
            code, _, err = fedfi(*arguments, "-q")
            assert (code, err) == (2, f"a/run.toml: {said}; change it back, or begin a new run\n")
    path.write_text(text.replace("seed = 3", "seed = 4"))
    code, _, err = fedfi("export", "a", "-o", "x.safetensors", "-q")
    assert (code, err.partition(";")[0]) == (2, "a/run.toml: seed = 4, the run began with 3")
    assert not Path("x.safetensors").exists()
    # what the loop alone reads changes no model
    path.write_text(
        text.replace("checkpoint_every = 1", "checkpoint_every = 2").replace("local = true", "local = false")
    )
    assert fedfi("export", "a", "-o", "x.safetensors", "-q") == (0, "", "")


def test_a_network_that_makes_no_program(capfd) -> None:
    """Its reason is one line, and torch says nothing on stderr."""
    with pytest.raises(InputError, match=r"--out: the network cannot be made a program: .*; write a .safetensors file"):
        _program(nets.Untraceable(), nets.rows(2, 5), {})
    assert capfd.readouterr() == ("", "")


def test_data_that_moved_with_their_run(file: Path, fedfi) -> None:
    """Where data lie is no setting of the model."""
    rows = "\n".join(f"{i % 7},{i % 5},{i % 3},{i % 2}" for i in range(60))
    Path("here.csv").write_text(f"a,b,c,label\n{rows}\n")
    sets = ["--set", "data.name=here.csv", "--set", "data.label=label", "--set", "data.clients=3"]
    assert fedfi("run", file, *sets, "--out", "a", "-q")[0] == 0
    Path("here.csv").rename("there.csv")
    text = Path("a/run.toml").read_text()
    Path("a/run.toml").write_text(text.replace("here.csv", "there.csv"))
    assert fedfi("export", "a", "-o", "x.safetensors", "-q") == (0, "", "")
    Path("a/run.toml").write_text(text.replace("here.csv", "there.csv").replace("seed = 3", "seed = 4"))
    assert fedfi("export", "a", "-o", "x.safetensors", "-q")[0] == 2
