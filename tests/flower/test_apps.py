"""An experiment file as Flower's apps: the same bits as `fedfi run`, options, own data, going on."""

from __future__ import annotations

import dataclasses
import json
import tomllib

import pytest
import tomli_w
import torch
from tests.flower.fakes import FakeGrid, Machine, Time, run_app

from fedfi.data import ClientData
from fedfi.engines.flower.door import ClientApp, ServerApp
from fedfi.errors import InputError, RunError
from fedfi.experiment import load_experiment
from fedfi.federation.record import read_lines
from fedfi.federation.run import run
from fedfi.flower import apps
from fedfi.flower.options import Options, defaults

EXPERIMENT = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 6, "partition": {"by": "dirichlet", "alpha": 0.3}, "validation": 50},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"learning_rate": 0.1, "batch_size": 20, "steps": 2},
    "algorithm": {"name": "fedfibos", "participation": 0.5, "capacities": {"1.0": 0.5, "0.5": 0.5}},
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(tomli_w.dumps(EXPERIMENT))
    return path


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFI_MEMORY", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path)
    apps._node_of.cache_clear()
    apps._shared.cache_clear()


def grid(file, nodes: int = 4, config=None, told=None) -> FakeGrid:
    """Nodes with the app of the file, each told its partition, or what `told` says."""
    there = FakeGrid(Time())
    told = told or [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    for i, own in enumerate(told):
        there.machines[100 + i] = Machine(apps.client_app(file), own, run_config={**defaults("run"), **(config or {})})
    return there


def serve(there, file, out, **config):
    return apps.serve(there, {**defaults(str(out)), **config}, file, clock=there.time.clock())


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def alone(file, *overrides):
    """What `fedfi run` does."""
    experiment = load_experiment(file, overrides)
    s = experiment.settings
    return run(experiment.algorithm(), experiment.task(), rounds=s.rounds, seed=s.seed, evaluate=s.evaluate)


@pytest.mark.parametrize("nodes", [1, 4, 6])
def test_an_experiment_gives_the_same_bits_as_on_one_machine(file, nodes, tmp_path):
    result = serve(grid(file, nodes), file, tmp_path / "run")
    assert result.failures == []
    assert same(result.model, alone(file).model)
    assert json.loads((tmp_path / "run/split.json").read_text())["clients"].keys() == {str(i) for i in range(6)}
    events = read_lines(tmp_path / "run/events.jsonl")
    assert sum("joined with" in e["text"] for e in events if e["event"] == "note") == nodes
    assert not [e for e in events if e["event"] == "warning"]


def test_settings_can_be_replaced_on_all_sides(file, tmp_path):
    changed = {"set": "train.steps=1; seed=3"}
    result = serve(grid(file, config=changed), file, tmp_path / "run", **changed)
    assert same(result.model, alone(file, "train.steps=1", "seed=3").model)


def test_settings_that_are_replaced_on_one_side_alone_are_noticed(file, tmp_path):
    with pytest.raises(RunError, match=r"0 of 6 clients are there; missing '0'.*node 100 was refused.*other settings"):
        serve(grid(file), file, tmp_path / "run", set="train.steps=1", wait=1.0)


def test_a_run_goes_on_in_its_directory(file, tmp_path):
    there = grid(file)
    serve(there, file, tmp_path / "run", set="rounds=1")
    assert len(read_lines(tmp_path / "run/metrics.jsonl")) == 1
    result = serve(there, file, tmp_path / "run")
    assert same(result.model, alone(file).model)
    assert len(result.metrics) == 2


def test_a_level_that_nobody_has_is_named_as_on_one_machine(file, tmp_path):
    settings = tomllib.loads(file.read_text())
    settings["algorithm"]["capacities"] = {"1.0": 0.99, "0.5": 0.01}
    file.write_text(tomli_w.dumps(settings))
    serve(grid(file), file, tmp_path / "out")
    said = [e["text"] for e in read_lines(tmp_path / "out" / "events.jsonl") if e["event"] == "warning"]
    assert any("level 0.5: 0 of 6 clients" in text for text in said)


def test_too_few_clients_end_the_run_before_it_begins(file, tmp_path):
    there = grid(file, 6)
    there.machines[103].online = False
    with pytest.raises(RunError, match="after 2 s 5 of 6 clients are there; missing '3'"):
        serve(there, file, tmp_path / "run", wait=2.0)
    assert not (tmp_path / "run").exists()
    result = serve(there, file, tmp_path / "run", **{"wait": 2.0, "min-clients": 5, "absence": 0.0})
    assert {f.client for f in result.failures} <= {"3"}


def hospitals(told):
    """Each hospital has its own digits, and knows its name."""
    from fedfi.data import load

    digits, _ = load("digits")
    first = {"east": 0, "west": 300, "north": 600}[told["hospital"]]
    rows = torch.arange(first, first + 200)
    return {told["hospital"]: ClientData(digits.examples(rows[:150]), digits.examples(rows[150:]))}


OWN = {"data": "tests.flower.test_apps:hospitals", "set": "algorithm.participation=1.0"}
TOLD = [{"hospital": "west"}, {"hospital": "east"}, {"hospital": "north"}]


def test_nodes_with_their_own_data(file, tmp_path):
    """Clients are those who are there, in the order of their names; the same clients on one machine give the same."""
    result = serve(grid(file, config=OWN, told=TOLD), file, tmp_path / "run", **OWN, **{"min-clients": 3})
    assert result.failures == []
    experiment = load_experiment(file, ["algorithm.participation=1.0"])
    task = experiment.task()
    clients = {name: hospitals({"hospital": name})[name] for name in ("east", "north", "west")}
    task = dataclasses.replace(task, data=dataclasses.replace(task.data, clients=clients))
    assert same(result.model, run(experiment.algorithm(), task, rounds=2).model)
    assert list(json.loads((tmp_path / "run/split.json").read_text())["clients"]) == ["east", "north", "west"]


def test_named_clients_may_come_later(file, tmp_path):
    there = grid(file, config=OWN, told=TOLD[:2])
    options = {**OWN, "clients": "west, east, north", "min-clients": 2, "absence": 0.0}
    for machine in there.machines.values():
        machine.run_config |= {"clients": options["clients"], "min-clients": 2, "absence": 0.0}
    result = serve(there, file, tmp_path / "run", **options)
    assert [(f.client, f.stage) for f in result.failures][:1] == [("north", "node")]
    assert list(json.loads((tmp_path / "run/split.json").read_text())["clients"]) == ["west", "east", "north"]


def test_in_a_simulation_the_partition_goes_before_own_data(file, tmp_path):
    result = serve(grid(file, config=OWN), file, tmp_path / "run", **OWN)
    assert same(result.model, alone(file, "algorithm.participation=1.0").model)


def nothing(told):
    return {}


def texts(told):
    return {"east": "data"}


@pytest.mark.parametrize(
    ("config", "told", "said"),
    [
        ({}, {}, r"does not know whose data it holds: start it with --node-config 'partition-id=0 num-partitions=6'"),
        (
            {},
            {"partition-id": 6, "num-partitions": 6},
            r"partition-id = 6: must be from 0 to .* = 5 \(nearest valid: 5\)",
        ),
        ({}, {"partition-id": "x"}, "must be whole numbers"),
        ({"data": "tests.flower.test_apps:nothing"}, {}, "gave a dict, expected clients' data by name"),
        ({"data": "tests.flower.test_apps:texts"}, {}, r"gave 'east': str, expected a text: fedfi.ClientData"),
        ({"data": "tests.flower.test_apps:absent"}, {}, "unknown name 'absent'"),
    ],
)
def test_a_node_that_cannot_work_says_why(file, config, told, said, tmp_path):
    there = grid(file, config=config, told=[told])
    with pytest.raises(RunError, match=said):
        serve(there, file, tmp_path / "run", **config, wait=1.0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"timeot": 3}, "run-config: timeot: unknown key; did you mean 'timeout'?"),
        ({"timeout": -1.0}, r"run-config: timeout = -1.0: must be at least 0 \(nearest valid: 0\)"),
        ({"lost-memory": "x"}, "run-config: lost_memory = \"x\": must be 'refuse' or 'forget'"),
    ],
)
def test_a_wrong_option_is_named(config, said):
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        Options.of(config)


def test_a_client_that_is_named_twice_is_refused():
    with pytest.raises(InputError, match="'a' is named twice"):
        Options(clients="a, b,a").client_names()


def test_the_apps_are_flowers(file):
    assert isinstance(apps.client_app(file), ClientApp)
    assert isinstance(apps.server_app(file), ServerApp)


def test_the_server_app_runs_the_loop(file, tmp_path):
    there = grid(file)
    run_app(apps.server_app(file), there, defaults(str(tmp_path / "run")))
    assert (tmp_path / "run/model.safetensors").exists()


def test_the_experiments_checkpoints_are_as_rare_as_it_says(file, tmp_path):
    result = serve(grid(file, config={"set": "rounds=3; checkpoint_every=2"}), file, tmp_path / "run", **{
        "set": "rounds=3; checkpoint_every=2"
    })  # fmt: skip
    assert len(result.metrics) == 3
    assert sorted(p.name[:12] for p in (tmp_path / "run/checkpoints").iterdir()) == ["round-000002", "round-000003"]


def test_another_treatment_of_the_data_is_noticed(file, tmp_path):
    """The same number of examples everywhere, but the node would change images that the server does not."""
    there = grid(file, config={"set": "data.augment=['flip']"})
    with pytest.raises(RunError, match=r"node 100 was refused.*other settings"):
        serve(there, file, tmp_path / "run", wait=1.0)


def test_who_takes_part_with_own_data_must_be_said(file, tmp_path):
    with pytest.raises(InputError, match=r"give their names, such as clients = 'east, west', or their number"):
        serve(grid(file, config=OWN, told=TOLD), file, tmp_path / "run", **OWN)


def test_a_run_with_own_data_goes_on_with_its_own_clients(file, tmp_path):
    """Even if one of them is away when it goes on, and somebody else is there."""
    options = {**OWN, "min-clients": 2, "absence": 0.0, "wait": 5.0}
    one, two = ({**options, "set": f"{OWN['set']}; rounds={n}"} for n in (1, 2))
    serve(grid(file, config=one, told=TOLD[:2]), file, tmp_path / "run", **one)
    there = grid(file, config=two, told=TOLD)
    result = serve(there, file, tmp_path / "run", **two)
    assert list(json.loads((tmp_path / "run/split.json").read_text())["clients"]) == ["east", "west"]
    assert result.failures == []
    assert [line["clients/asked"] for line in result.metrics] == [2, 2]


# ratings


RATINGS = {
    "rounds": 3,
    "data": {"name": "synthetic_ratings"},
    "model": {"name": "item_table", "dimension": 4},
    "train": {"learning_rate": 0.1, "batch_size": 64, "epochs": 1},
    "algorithm": {"name": "fedrkg", "participation": 0.2, "interval": 2},
}


@pytest.fixture
def rated(tmp_path):
    path = tmp_path / "rated.toml"
    path.write_text(tomli_w.dumps(RATINGS))
    return path


def numbers(result):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics]


@pytest.mark.parametrize("nodes", [1, 4])
def test_ratings_give_the_same_bits_as_on_one_machine(rated, nodes, tmp_path):
    """The users of all nodes together; each keeps its table on its node's disk."""
    result, whole = serve(grid(rated, nodes), rated, tmp_path / "run"), alone(rated)
    assert result.failures == []
    assert same(result.model, whole.model)
    assert numbers(result) == numbers(whole)
    tables = list((tmp_path / "memory").rglob("client-*"))
    assert 40 < len(tables) <= 120  # those of three rounds


def shop(told):
    """The ratings of a third of the synthetic users, as a table that knows nothing of other shops' films."""
    import pandas as pd

    from fedfi.data.recommendation import load_ratings

    every = load_ratings("synthetic_ratings")
    own = every.user % 3 == told["shop"]
    return pd.DataFrame(
        {
            "user": [every.users[i] for i in every.user[own]],
            "item": [every.items[i] for i in every.item[own]],
            "time": every.time[own],
        }
    )


def test_users_with_their_own_ratings(rated, tmp_path):
    """All that the server knows are names; what each learns is what it would learn from the same data elsewhere."""
    options = {"data": "tests.flower.test_apps:shop", "min-clients": 200}
    there = grid(rated, config=options, told=[{"shop": i} for i in range(3)])
    result, whole = serve(there, rated, tmp_path / "run", **options), alone(rated)
    assert result.failures == []
    record = json.loads((tmp_path / "run/split.json").read_text())
    assert len(record["clients"]) == 200
    assert set(record["clients"].values()) == {"elsewhere"}
    for name, tensor in whole.model.items():  # the order of users is another, and with it the order of sums
        assert tensor.shape == result.model[name].shape
    assert all(line["clients/replied"] == 40 for line in result.metrics)
    assert "ranking/hr@10" in result.metrics[-1]


def stranger(told):
    import pandas as pd

    return pd.DataFrame({"user": ["a"] * 6, "item": [f"film {i}" for i in range(6)], "time": range(6)})


def test_items_that_the_federation_does_not_have_are_refused(rated, tmp_path):
    options = {"data": "tests.flower.test_apps:stranger", "min-clients": 1, "wait": 1.0}
    with pytest.raises(RunError, match="item 'film 0' is none of the federation's 273 items"):
        serve(grid(rated, config=options, told=[{}]), rated, tmp_path / "run", **options)


def test_ratings_are_a_table(rated, tmp_path):
    options = {"data": "tests.flower.test_apps:texts", "min-clients": 1, "wait": 1.0}
    with pytest.raises(RunError, match="gave a dict, expected ratings"):
        serve(grid(rated, config=options, told=[{}]), rated, tmp_path / "run", **options)
