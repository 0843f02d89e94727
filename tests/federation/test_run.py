from __future__ import annotations

import dataclasses
import json
import tomllib
import weakref

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny

import fedfi
from fedfi.averaging.fedavg import FedAvg
from fedfi.errors import InputError, RunError
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.record import read_lines
from fedfi.federation.run import run

EVERYONE = FedAvg()


def poisoned(task, clients):
    """The same task, with one input at each of the clients that overflows."""
    data = task.data
    inputs = data.test.dataset.inputs.clone()
    for client in clients:
        inputs[data.clients[client].train.indices[0]] = 3e38
    changed = dataclasses.replace(data.test.dataset, inputs=inputs)

    def moved(examples):
        return dataclasses.replace(examples, dataset=changed)

    held = {n: dataclasses.replace(c, train=moved(c.train), test=moved(c.test)) for n, c in data.clients.items()}
    return dataclasses.replace(task, data=dataclasses.replace(data, clients=held, test=moved(data.test)))


def test_a_nan_loss_is_a_failure_and_the_run_goes_on():
    result = run(EVERYONE, poisoned(tiny.small(), ["c2"]), rounds=2)
    assert {(f.client, f.stage) for f in result.failures} == {("c2", "client_update")}
    assert "the loss is nan at step" in result.failures[0].error
    assert all(bool(torch.isfinite(t).all()) for t in result.model.values())


def test_nan_at_every_client_ends_the_run():
    task = tiny.small()
    with pytest.raises(RunError, match=r"round 1: 0 of 6 clients delivered, 1 is needed; last failure.*loss is nan"):
        run(EVERYONE, poisoned(task, task.data.clients), rounds=2)


def test_a_run_directory_holds_what_was_promised(tmp_path):
    result = run(EVERYONE, tiny.small(), rounds=2, out=tmp_path / "run")
    files = {p.name for p in (tmp_path / "run").iterdir()}
    assert files >= {
        "run.toml",
        "env.json",
        "split.json",
        "inputs.json",
        "events.jsonl",
        "metrics.jsonl",
        "checkpoints",
        "model.safetensors",
    }
    settings = tomllib.loads((tmp_path / "run/run.toml").read_text())
    assert (settings["rounds"], settings["train"]["batch_size"]) == (2, 4)
    lines = read_lines(tmp_path / "run/metrics.jsonl")
    assert lines == result.metrics
    assert lines[0].keys() >= {
        "round",
        "seconds",
        "global/accuracy",
        "global/loss",
        "local/accuracy_mean",
        "bytes/up",
        "bytes/down",
    }
    split = json.loads((tmp_path / "run/split.json").read_text())
    assert split["clients"]["c0"]["train"]["size"] == 6
    sent = [e for e in read_lines(tmp_path / "run/events.jsonl") if e["event"] == "sent"]
    assert sum(e["bytes"] for e in sent) == sum(line["bytes/down"] for line in lines)


def test_an_existing_directory_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(ValueError, match="exists and is not empty"):
        run(EVERYONE, tiny.small(), rounds=1, out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_two_processes_cannot_share_a_directory(tmp_path):
    def second(line):
        with pytest.raises(ValueError, match="another process is running"):
            run(EVERYONE, tiny.small(), rounds=2, out=tmp_path / "run", resume=True)

    run(EVERYONE, tiny.small(), rounds=1, out=tmp_path / "run", observe=second)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rounds": 0}, "rounds = 0: must be at least 1"),
        ({"rounds": 1, "min_replies": 0}, "min_replies = 0"),
        ({"rounds": 1, "workers": 0}, "workers = 0"),
        ({"rounds": 1, "resume": True}, "resume needs the run directory"),
    ],
)
def test_bad_arguments_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        run(EVERYONE, tiny.small(), **arguments)


def test_more_clients_a_round_than_there_are():
    with pytest.raises(ValueError, match=r"clients_per_round = 7: there are only 6 clients \(nearest valid: 6\)"):
        run(FedAvg(clients_per_round=7), tiny.small(), rounds=1)


def test_judging_follows_the_schedule_and_always_ends_with_the_last_round():
    result = run(EVERYONE, tiny.small(), rounds=5, evaluate=Evaluate(every=2, local=False))
    assert [line["round"] for line in result.metrics if "global/accuracy" in line] == [2, 4, 5]
    assert not any(k.startswith("local/") for line in result.metrics for k in line)


def test_a_client_without_test_examples_is_left_out_of_the_local_means():
    task = tiny.small()
    none = dataclasses.replace(task.data.clients["c0"], test=task.data.test.subset(torch.empty(0, dtype=torch.int64)))
    data = dataclasses.replace(task.data, clients={**task.data.clients, "c0": none})
    result = run(EVERYONE, dataclasses.replace(task, data=data), rounds=1)
    assert result.failures == []
    assert 0 <= result.metrics[0]["local/accuracy_mean"] <= 1


def interrupted(out, rounds=4, after=2, **options):
    """A run that was interrupted after some rounds."""

    def stop(line):
        if line["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(EVERYONE, tiny.small(), rounds=rounds, out=out, observe=stop, **options)


def test_a_torn_line_of_events_is_cut_off(tmp_path):
    interrupted(tmp_path / "run")
    with (tmp_path / "run/events.jsonl").open("a") as file:
        file.write('{"event": "sen')
    run(EVERYONE, tiny.small(), rounds=4, out=tmp_path / "run", resume=True)
    events = read_lines(tmp_path / "run/events.jsonl")
    assert [e["event"] for e in events][-1] == "done"
    assert [e["round"] for e in events if e["event"] == "resume"] == [3]


def test_a_run_does_not_go_on_with_other_settings(tmp_path):
    interrupted(tmp_path / "run")
    changed = dataclasses.replace(tiny.small(), training=dataclasses.replace(tiny.small().training, learning_rate=0.5))
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"train.learning_rate = 0.5, the run began with 0.1"):
        run(EVERYONE, changed, rounds=4, out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"rounds = 1: the run has 2 \(nearest valid: 2\)"):
        run(EVERYONE, tiny.small(), rounds=1, out=tmp_path / "run", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_lost_metrics_file_is_not_papered_over(tmp_path):
    interrupted(tmp_path / "run")
    (tmp_path / "run/metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"metrics.jsonl: has 0 bytes, it had \d+"):
        run(EVERYONE, tiny.small(), rounds=4, out=tmp_path / "run", resume=True)


def test_a_run_without_its_checkpoints_is_not_begun_again(tmp_path):
    interrupted(tmp_path / "run")
    for checkpoint in (tmp_path / "run/checkpoints").iterdir():
        checkpoint.unlink()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=r"holds no checkpoint to go on from, though the run has a metrics.jsonl"):
        run(EVERYONE, tiny.small(), rounds=4, out=tmp_path / "run", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path):
    whole = run(EVERYONE, tiny.small(), rounds=2, out=tmp_path / "whole")
    early = tmp_path / "early"
    early.mkdir()
    (early / "run.toml").write_bytes((tmp_path / "whole/run.toml").read_bytes())
    again = run(EVERYONE, tiny.small(), rounds=2, out=early, resume=True)
    assert all(torch.equal(whole.model[n], again.model[n]) for n in whole.model)
    assert (early / "split.json").exists()
    assert (early / "inputs.json").read_bytes() == (tmp_path / "whole/inputs.json").read_bytes()
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / ".lock").touch()
    run(EVERYONE, tiny.small(), rounds=1, out=locked)


def test_a_run_that_cannot_begin_leaves_no_directory(tmp_path):
    def nothing():
        return tiny.nn.Sequential(tiny.nn.Flatten(), tiny.nn.ReLU())

    with pytest.raises(ValueError, match="no trainable parameter"):
        run(EVERYONE, dataclasses.replace(tiny.small(), model=nothing), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (lambda: tiny.nn.LazyLinear(3), "'weight' has no shape yet"),
        (
            lambda: tiny.nn.Sequential(tiny.nn.Linear(2, 3), tiny.nn.Linear(3, 3).double()),
            "'0.weight' is torch.float32, '1.weight' is torch.float64",
        ),
        (lambda: tiny.nn.Linear(2, 3, device="meta"), "has no values"),
    ],
)
def test_modules_that_make_no_vector_are_refused(net, said):
    with pytest.raises(ValueError, match=said):
        run(EVERYONE, dataclasses.replace(tiny.small(), model=net), rounds=1)


def test_more_replies_than_clients_asked_are_refused_at_the_start():
    with pytest.raises(ValueError, match=r"min_replies = 7: only 6 clients are asked a round \(nearest valid: 6\)"):
        run(EVERYONE, tiny.small(), rounds=1, min_replies=7)


@pytest.mark.parametrize("part", ["loss", "evaluation"])
@pytest.mark.parametrize("workers", [1, 2])
def test_one_value_for_a_whole_batch_is_refused(part, workers):
    def mean(outputs, targets):
        value = torch.nn.functional.cross_entropy(outputs, targets)
        return value if part == "loss" else {"loss": value}

    with pytest.raises(InputError, match=r"has shape \(\), expected one value an example"):
        run(EVERYONE, dataclasses.replace(tiny.small(), **{part: mean}), rounds=1, workers=workers)


def test_shared_examples_are_an_error_even_without_a_directory():
    task = tiny.small()
    clients = dict(task.data.clients)
    clients["c1"] = clients["c0"]
    with pytest.raises(ValueError, match="share 6 examples"):
        run(EVERYONE, dataclasses.replace(task, data=dataclasses.replace(task.data, clients=clients)), rounds=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": "fedavg"}, "expected an instance of a method"),
        ({"algorithm": FedAvg}, "expected an instance of a method"),
        ({"rounds": "3"}, "rounds = '3': must be a whole number"),
        ({"seed": -1}, r"seed = -1: must be at least 0 \(nearest valid: 0\)"),
        ({"task": None}, "expected a fedfi.Task"),
    ],
)
def test_wrong_kinds_of_arguments_are_named(change, said):
    arguments = {"algorithm": EVERYONE, "task": tiny.small(), "rounds": 1} | change
    with pytest.raises(ValueError, match=said):
        run(arguments.pop("algorithm"), arguments.pop("task"), **arguments)


def test_the_model_file_loads_into_plain_pytorch_with_tied_weights(tmp_path):
    def tied():
        net = tiny.nn.Sequential(tiny.nn.Linear(6, 6, bias=False), tiny.nn.ReLU(), tiny.nn.Linear(6, 6, bias=False))
        net[2].weight = net[0].weight
        return net

    task = dataclasses.replace(tiny.small(), model=tied)
    result = run(EVERYONE, task, rounds=1, out=tmp_path / "run")
    net = tied()
    net.load_state_dict(result.model, strict=True)  # a tied tensor is there once, under both of its names
    assert result.model["2.weight"].data_ptr() == result.model["0.weight"].data_ptr()
    assert run(EVERYONE, task, rounds=1).model.keys() == result.model.keys()
    net = tied()
    net.load_state_dict(load_file(tmp_path / "run/model.safetensors"), strict=True)
    assert net[2].weight is net[0].weight


def test_results_are_shown_in_a_line_and_progress_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    task = tiny.small()
    result = run(FedAvg(), task, rounds=2, progress=True)
    assert repr(result).startswith("RunResult(2 rounds, global/accuracy 0.")
    for thing in (result, task, task.data, task.data.test, task.data.test.dataset):
        assert len(repr(thing)) < 400
        assert "tensor" not in repr(thing)
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == ["round 1/2", "round 2/2"]
    with pytest.raises(InputError, match="swap them"):
        run(task, FedAvg(), rounds=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^algorithm is FedAvg, expected an instance"):
        run(FedAvg, task, rounds=1)  # type: ignore[arg-type]


def test_the_first_state_is_not_held_through_the_run():
    """It may be as large as the model of every client."""
    seen = []

    class Watched(fedfi.Averaging):
        def init(self, task, rng):
            state = super().init(task, rng)
            seen.append(weakref.ref(state))
            return state

        def train(self, client):
            return fedfi.train_locally(client)

        def aggregate(self, state, round, replies, rng):
            if round:
                assert seen[0]() is None
            return super().aggregate(state, round, replies, rng)

    run(fedfi.method(Watched)(), tiny.small(), rounds=2)
