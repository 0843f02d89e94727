from __future__ import annotations

import resource
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests import tiny
from tests.matrix.rows import ROWS

from fedfi.errors import RunError
from fedfi.federation import checkpoint
from fedfi.federation.rows import RowStore
from fedfi.federation.run import run


@dataclass
class Inner:
    x: torch.Tensor
    names: list[str]


@dataclass
class State:
    inner: Inner
    table: dict[str, Any] = field(default_factory=dict)
    pair: tuple[int, float | None] = (1, None)
    rows: RowStore = field(default_factory=lambda: RowStore(2))


@dataclass
class Settled:
    config: str
    x: torch.Tensor


def test_a_nested_state_survives(tmp_path):
    state = State(Inner(torch.tensor([1.0, float("inf")]), ["a"]), {"k": torch.arange(3), "n": 1e-300}, (2, 0.1))
    state.rows.write("c", torch.ones(2))
    checkpoint.save(tmp_path, 3, state)
    template = State(Inner(torch.zeros(2), []), rows=state.rows)
    rounds, again = checkpoint.load(tmp_path, template, pytest.fail)
    assert rounds == 3
    assert torch.equal(again.inner.x, state.inner.x)
    assert again.inner.names == ["a"]
    assert torch.equal(again.table["k"], torch.arange(3))
    assert (again.table["n"], again.pair) == (1e-300, (2, 0.1))
    assert torch.equal(again.rows.read("c"), torch.ones(2))


def test_what_cannot_be_stored_is_named():
    with pytest.raises(TypeError, match=r"state\[f\] is a function"):
        checkpoint.flatten({"f": lambda: 0}, {})


def test_only_the_newest_two_are_kept(tmp_path):
    for rounds in range(5):
        checkpoint.save(tmp_path, rounds, {"x": torch.tensor(rounds)})
    assert sorted(p.name[:12] for p in tmp_path.iterdir()) == ["round-000003", "round-000004"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    checkpoint.save(tmp_path, 1, {"x": torch.tensor(1)})
    path = checkpoint.save(tmp_path, 2, {"x": torch.tensor(2)})
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes({"flip": bytes(raw), "truncate": raw[:-5], "empty": b""}[damage])
    told: list[str] = []
    rounds, content = checkpoint.load(tmp_path, {"x": torch.tensor(0)}, told.append)
    assert (rounds, int(content["x"])) == (1, 1)
    assert told == [f"checkpoint {path.name} is damaged and is passed over"]


def test_without_a_usable_checkpoint_the_error_says_where_it_looked(tmp_path):
    with pytest.raises(RunError, match=f"no usable checkpoint in {tmp_path}"):
        checkpoint.load(tmp_path, {}, pytest.fail)


@pytest.mark.parametrize("name", ["fedavg", "fedfibos"])
def test_a_damaged_newest_checkpoint_costs_a_round_and_no_bit(name, tmp_path):
    algorithm = ROWS[name].algorithm
    whole = run(algorithm, tiny.small(), rounds=4, out=tmp_path / "whole")
    run(algorithm, tiny.small(), rounds=3, out=tmp_path / "parts")
    newest = max((tmp_path / "parts/checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    parts = run(algorithm, tiny.small(), rounds=4, out=tmp_path / "parts", resume=True)
    assert all(torch.equal(whole.model[n], parts.model[n]) for n in whole.model)
    assert [line["round"] for line in parts.metrics] == [1, 2, 3, 4]
    assert "is damaged" in (tmp_path / "parts/events.jsonl").read_text()


def test_a_full_disk_is_a_clear_error_and_leaves_earlier_checkpoints(tmp_path):
    """The limit on the size of a file stands in for a full disk: the kernel refuses the write half-way."""
    plain = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    first = checkpoint.save(tmp_path, 1, {"x": torch.zeros(10)})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        with pytest.raises(RunError, match=r"cannot write the checkpoint of round 2 .*earlier checkpoints are intact"):
            checkpoint.save(tmp_path, 2, {"x": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, plain)
    assert list(tmp_path.iterdir()) == [first]
    assert checkpoint.load(tmp_path, {"x": torch.zeros(10)}, pytest.fail)[0] == 1


def test_a_plain_field_is_read_from_the_header_alone(tmp_path):
    """The newest header that can be read counts, whatever became of the tensors behind it."""
    assert checkpoint.peek(tmp_path, "pair") is None
    checkpoint.save(tmp_path, 1, State(Inner(torch.zeros(2), []), table={}, pair=(1, 0.5)))
    newest = checkpoint.save(tmp_path, 2, Settled("later", torch.zeros(1000)))
    assert checkpoint.peek(tmp_path, "config") == "later"
    newest.write_bytes(newest.read_bytes()[:-100])
    assert checkpoint.peek(tmp_path, "config") == "later"
    newest.write_bytes(b"\xff" * 64)
    assert checkpoint.peek(tmp_path, "config") is None
