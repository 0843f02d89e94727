"""The code in docs/flower.md does what it says."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.blocks import blocks
from tests.flower.fakes import FakeGrid, Machine, Time, run_app

from fedfi.averaging.fedavg import FedAvg
from fedfi.data.interactions import from_frame
from fedfi.engines.flower.door import ArrayRecord, Error, Message, RecordDict
from fedfi.federation.checkpoint import tensors_from_file
from fedfi.federation.record import read_lines
from fedfi.federation.run import run

PAGE = Path(__file__).parents[2] / "docs/flower.md"
BLOCKS = [block.text for block in blocks(PAGE, "python")]


def executed(beginning: str) -> dict:
    """The names that the block with this in it defines."""
    (block,) = [b for b in BLOCKS if beginning in b]
    space: dict = {"__name__": "docs"}
    exec(compile(block, str(PAGE), "exec"), space)
    return space


@pytest.fixture(autouse=True)
def mine(monkeypatch, tmp_path):
    module = types.ModuleType("mine")
    module.make_task = tiny.small
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setenv("FEDFI_MEMORY", str(tmp_path / "memory"))


def test_our_loop_as_a_server_app(tmp_path):
    grid = FakeGrid(Time())
    client = executed("# client_app.py")["app"]
    for i in range(3):
        grid.machines[i] = Machine(client, {"partition-id": i, "num-partitions": 3})
    run_app(executed("# server_app.py")["app"], grid, {"out": str(tmp_path / "run")})
    model = run(FedAvg(participation=0.5), tiny.small(), rounds=3, seed=0).model
    found = tensors_from_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(model[n], found[n]) for n in model)


def test_our_loop_goes_on_where_a_server_was_killed(tmp_path):
    grid, out = FakeGrid(Time()), tmp_path / "run"
    client = executed("# client_app.py")["app"]
    for i in range(3):
        grid.machines[i] = Machine(client, {"partition-id": i, "num-partitions": 3})

    def killed(node, message, reply):
        if (out / "metrics.jsonl").exists():
            raise KeyboardInterrupt
        return [(grid.time.seconds, reply)]

    grid.fault = killed
    with pytest.raises(KeyboardInterrupt):
        run_app(executed("# server_app.py")["app"], grid, {"out": str(out)})
    assert len(read_lines(out / "metrics.jsonl")) == 1
    grid.fault = None
    run_app(executed("# server_app.py")["app"], grid, {"out": str(out)})
    assert [e["round"] for e in read_lines(out / "events.jsonl") if e["event"] == "resume"] == [2]
    model = run(FedAvg(participation=0.5), tiny.small(), rounds=3, seed=0).model
    found = tensors_from_file(out / "model.safetensors")
    assert all(torch.equal(model[n], found[n]) for n in model)


def test_own_data(tmp_path):
    rows = "\n".join(f"{i},{i % 7},{i % 2}" for i in range(40))
    (tmp_path / "east.csv").write_text(f"a,b,outcome\n{rows}\n")
    given = executed("def hospital")["hospital"]({"name": "east", "path": str(tmp_path / "east.csv")})
    assert list(given) == ["east"]
    assert len(given["east"].train) + len(given["east"].test) == 40


def test_own_ratings(tmp_path):
    (tmp_path / "shop.csv").write_text("user,item,time\na,x,1\na,y,2\nb,x,3\n")
    frame = executed("def shop")["shop"]({"path": str(tmp_path / "shop.csv")})
    assert from_frame(frame).users == ("a", "b")


def test_our_functions_in_a_strategy():
    """Of four entries each reply counts with one: the first client's third, the second's first; others stay."""
    strategy = executed("class TopFisher")["TopFisher"]()
    strategy.before = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    sent = Message(RecordDict(), 1, "train")

    def reply(model, fisher):
        records = {"arrays": model, "fisher": fisher}
        content = {k: ArrayRecord({"w": torch.tensor(v[:2]), "b": torch.tensor(v[2:])}) for k, v in records.items()}
        return Message(RecordDict(content), reply_to=sent)

    replies = [
        reply([10.0, 10.0, 10.0, 10.0], [0.1, 0.2, 0.9, 0.3]),
        reply([20.0, 20.0, 20.0, 20.0], [0.9, 0.2, 0.1, 0.3]),
        Message(Error(2, "failed"), reply_to=sent),
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    found = arrays.to_torch_state_dict()
    assert torch.cat([found["w"], found["b"]]).tolist() == [20.0, 2.0, 10.0, 4.0]
