from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from fedfi.federation.checkpoint import tensors_from_file

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
        (("export", "a", "--capacity", "0.3", "-o", "x.safetensors"), "--capacity: unknown level '0.3'"),
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
