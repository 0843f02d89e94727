"""Tables `[algorithm.private]` and `[algorithm.encrypted]` of an experiment."""

from __future__ import annotations

import json
import re

import pytest

from fedfi.cli import main
from fedfi.composing import choose
from fedfi.errors import InputError
from fedfi.experiment import from_dict, load_experiment
from fedfi.personal.encrypted import Encrypted
from fedfi.personal.private import Private
from fedfi.validation import as_toml

BASE = {
    "rounds": 2,
    "data": {"name": "breast_cancer", "clients": 6},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"steps": 1},
}
FEDPROX = {"name": "fedprox", "weights": "uniform", "proximal": 0.5, "participation": 0.5}
NOISY = {"where": "client", "clip": 0.5, "noise": 2.0}
CLEAR = {"encryption": {"enabled": False}}


def made(algorithm, **changes):
    return from_dict({**BASE, "algorithm": algorithm, **changes}, source="x.toml")


def test_noise_stands_within_encryption_whatever_the_order_of_the_keys():
    outer = made({"encrypted": CLEAR, "private": NOISY, **FEDPROX}).algorithm()
    assert isinstance(outer, Encrypted)
    assert isinstance(outer.algorithm, Private)
    assert (outer.algorithm.clip, outer.algorithm.noise, outer.encryption.enabled) == (0.5, 2.0, False)
    assert outer.algorithm.algorithm.proximal == 0.5


@pytest.mark.parametrize("size", [{"participation": 0.5}, {"clients_per_round": 4}])
@pytest.mark.parametrize("around", [{"private": NOISY}, {"encrypted": {}}, {"private": NOISY, "encrypted": CLEAR}])
def test_who_takes_part_is_said_once(size, around):
    algorithm = {k: v for k, v in FEDPROX.items() if k != "participation"} | size | around
    method = made(algorithm).algorithm()
    assert {key: getattr(method, key) for key in size} == size


@pytest.mark.parametrize("size", [{"participation": 0.5}, {"clients_per_round": 4}])
def test_what_is_resolved_is_complete_and_means_the_same(size):
    algorithm = {k: v for k, v in FEDPROX.items() if k != "participation"} | size
    first = made({**algorithm, "private": NOISY, "encrypted": CLEAR})
    resolved = first.resolved()
    again = from_dict(resolved)
    assert again.method == first.method
    assert again.resolved() == resolved
    assert resolved["algorithm"]["private"]["delta"] == 1e-5
    assert resolved["algorithm"]["encrypted"]["most_examples"] == 1024
    assert "algorithm" not in resolved["algorithm"]["private"]


@pytest.mark.parametrize("name", ["fedfibos", "fiarse", "fedrkg", "fedrap"])
def test_submodels_and_recommenders_are_encrypted_from_a_file(name):
    first = made({"name": name, "encrypted": CLEAR})
    assert type(first.algorithm()) is Encrypted
    assert from_dict(first.resolved()).method == first.method
    assert first.algorithm().data_kind == first.algorithm().algorithm.data_kind


def test_what_suits_a_method_is_shown(capsys):
    for name, shown in (("fedrkg", "encrypted"), ("fedfibos", "private, encrypted"), ("fiarse", "encrypted")):
        assert main(["show", name]) == 0
        assert f"may stand around it: fedfi show {shown}\n" in capsys.readouterr().out
    for name in ("colr", "heterofl", "fedfihe"):
        assert main(["show", name]) == 0
        assert "may stand around it" not in capsys.readouterr().out


def test_a_budget_lasts_all_rounds():
    private = {"where": "client", "epsilon": 8.0}
    assert made({**FEDPROX, "private": private}).algorithm().rounds == 2
    assert made({**FEDPROX, "private": {**private, "rounds": 5}}).algorithm().rounds == 5
    with pytest.raises(InputError, match=r"algorithm.private.rounds = 1: the run has more \(nearest valid: 2\)"):
        made({**FEDPROX, "private": {**private, "rounds": 1}})


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"private": 3}, r"x.toml: algorithm.private = 3: must be a table \(nearest valid: {}\)"),
        ({"private": {"clp": 1.0}}, "x.toml: algorithm.private.clp: unknown key 'clp'; did you mean 'clip'"),
        ({"private": {"noise": -1.0}}, "x.toml: algorithm.private.noise = -1.0: must be above 0"),
        ({"private": {"noise": "1"}}, 'x.toml: algorithm.private.noise = "1": must be a number'),
        ({"private": {"where": "servr", "noise": 1.0}}, 'algorithm.private.where = .*nearest valid: "server"'),
        ({"private": {}}, "x.toml: algorithm.private: give noise, or epsilon"),
        ({"private": {"noise": 1.0, "participation": 0.1}}, "it belongs to algorithm.participation"),
        ({"private": {"noise": 1.0, "algorithm": "fedavg"}}, "x.toml: algorithm.private.algorithm: unknown key"),
        ({"encrypted": {"encryption": {"clp": 1}}}, "x.toml: algorithm.encrypted.encryption.clp: unknown key"),
        ({"private": {"noise": 1.0}, "encrypted": {}}, "x.toml: algorithm.encrypted: .*where = 'server' cannot"),
        ({"name": "fedavg", "private": {"noise": 1.0}, "weights": "examples"}, "FedAvg weighs clients by examples"),
        (
            {"name": "fedfibos", "private": {"noise": 1.0}},
            "algorithm.private: FedFIbOS cannot be made private: .*plain",
        ),
        ({"name": "fedfihe", "encrypted": {}}, "x.toml: algorithm.encrypted: FedFIHE cannot be encrypted"),
        ({"name": "he-fedavg", "encrypted": {}}, "HEFedAvg cannot be encrypted: it is encrypted already"),
        ({"name": "fedfihe", "private": {"noise": 1.0}}, "FedFIHE cannot be made private: what it sends is encrypted"),
        ({"privat": {"noise": 1.0}}, "x.toml: algorithm.privat: unknown key; did you mean 'private'"),
        ({"name": "local", "xyz": 1}, r"x.toml: algorithm.xyz: unknown key; choose from .*encrypted.*private"),
        ({"private": {"noise": 1.0, "epsilon": 2.0}}, r"not both; got noise = 1, epsilon = 2, rounds = 2 .*noise = 1 "),
        ({"private": {"noise": 1.0, "rounds": 3}}, r"not both; got noise = 1, rounds = 3 \(nearest valid: noise = 1 "),
        ({"private": {"rounds": 3}}, r"got rounds = 3 \(nearest valid: noise = 1.0\)"),
        ({"private": {}}, r"got none of them \(nearest valid: noise = 1.0\)"),
        ({"name": "fedrkg", "private": {"noise": 1.0}}, "x.toml: algorithm.private: FedRKG cannot be made private"),
    ],
)
def test_what_is_wrong_is_named(algorithm, said):
    base = FEDPROX if "name" not in algorithm else {}
    with pytest.raises(InputError, match=said):
        made({**base, **algorithm})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"private": {"epsilon": 1e-30, "delta": 1e-300}},
            "algorithm.private.epsilon = 1e-30: for 2 rounds .*nearest valid: ",
        ),
        ({"private": {"noise": 1e-300}}, "algorithm.private.noise = 1e-300: .*nearest valid: 1e-09"),
        ({"encrypted": {"encryption": {"clip": 1e9}}}, r"algorithm.encrypted.encryption.clip = 1e\+09: "),
        (
            {"private": {"epsilon": 1e-30, "delta": 1e-300, "where": "client"}, "encrypted": {}},
            "algorithm.private.epsilon = 1e-30: ",
        ),
    ],
)
def test_what_turns_out_later_names_the_whole_key(options, said, tmp_path, capsys):
    pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
    file = tmp_path / "x.toml"
    table = {"name": "fedavg", "weights": "uniform", **options}
    file.write_text(
        'rounds = 2\n[data]\nname = "breast_cancer"\nclients = 6\n[model]\nname = "mlp"\nhidden = [4]\n'
        f"[train]\nsteps = 1\n[algorithm]\n{chr(10).join(f'{k} = {as_toml(v)}' for k, v in table.items())}\n"
    )
    assert main(["run", str(file), "--out", str(tmp_path / "run")]) == 2
    assert re.search(f"x.toml: {said}", (error := capsys.readouterr().err)), error


def test_a_comparison_drops_no_protection():
    table = {**FEDPROX, "private": NOISY}
    assert choose(table, "fedper") == {"name": "fedper", "weights": "uniform", "participation": 0.5, "private": NOISY}


def test_commands_run_show_and_compare_wrapped_methods(tmp_path, capsys):
    pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
    file = tmp_path / "x.toml"
    file.write_text(
        'rounds = 2\n[data]\nname = "breast_cancer"\nclients = 6\n[model]\nname = "mlp"\nhidden = [4]\n'
        '[train]\nsteps = 1\n[algorithm]\nname = "fedavg"\nweights = "uniform"\n'
        '[compare.plain]\n[compare.private]\nprivate = { where = "client", epsilon = 50.0 }\n'
        '[compare.both]\nprivate = { where = "client", epsilon = 50.0 }\n'
        "encrypted = { encryption = { enabled = false } }\n"
    )
    run = tmp_path / "run"
    options = ["--set", "algorithm.private.noise=5.0", "--set", "algorithm.private.clip=0.5"]
    assert main(["run", str(file), "--out", str(run), *options]) == 0
    assert "privacy of a client: epsilon" in capsys.readouterr().out
    assert load_experiment(run / "run.toml").algorithm().clip == 0.5
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["privacy/noise"] == 5.0
    assert main(["compare", str(file), "--seeds", "0", "--out", str(tmp_path / "all"), "--quiet"]) == 0
    table = (tmp_path / "all/table.md").read_text()
    assert "privacy/epsilon" in table
    results = json.loads((tmp_path / "all/results.json").read_text())["methods"]
    spent = {label: m["summary"].get("privacy/epsilon", {}).get("mean") for label, m in results.items()}
    assert spent["plain"] is None
    assert 49 < spent["private"] == spent["both"] <= 50
    capsys.readouterr()
    assert main(["show", "private"]) == 0
    assert "[algorithm.private]" in (shown := capsys.readouterr().out)
    assert "clip" in shown
    assert "participation" not in shown
    assert main(["show", "fedper"]) == 0
    assert "fedfi show private, encrypted" in capsys.readouterr().out


def test_an_override_of_noise_stands_instead_of_epsilon(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(
        'rounds = 2\n[data]\nname = "breast_cancer"\nclients = 6\n[model]\nname = "mlp"\n[algorithm]\nname = "fedavg"\n'
        'weights = "uniform"\nprivate = { epsilon = 50.0 }\n'
    )
    assert load_experiment(file).algorithm().epsilon == 50.0
    changed = load_experiment(file, ["algorithm.private.noise=2.0"]).algorithm()
    assert (changed.noise, changed.epsilon, changed.rounds) == (2.0, None, None)
