"""The examples of merging pretrained networks, at a tiny size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_resnets(tmp_path):
    small = ["--width", "0.07", "--epochs", "1", "--validation", "60", "--out", str(tmp_path)]
    module = example("merge_resnets")
    module.METHODS["fedfiot, closer to the ensemble"] += ["--set", "distil_steps=2"]
    scores = module.main(small)
    assert list(scores)[2:] == list(module.METHODS)
    assert all(0 <= score <= 1 for score in scores.values())


def test_two_transformers(tmp_path):
    pytest.importorskip("tokenizers")
    small = ["--reviews", "64", "--epochs", "1", "--layers", "1", "--hidden", "16", "--out", str(tmp_path)]
    scores = example("merge_transformers").main(small)
    assert list(scores) == ["start", "party books", "party meals", "average", "task-arithmetic", "ties", "fedfiot"]
    assert all(0 <= score <= 1 for score in scores.values())
