from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

from fedfi.composing import choose
from fedfi.data.settings import Data
from fedfi.data.sources import load
from fedfi.errors import InputError
from fedfi.experiment import from_dict, load_experiment, parse_override
from fedfi.importing import importing_from

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def test_resolved_is_complete_and_stable(file: Path) -> None:
    first = load_experiment(file)
    resolved = first.resolved()
    assert resolved["train"]["optimizer"] == "sgd"
    assert resolved["algorithm"]["ema"] == 0.9
    assert resolved["data"]["test_fraction"] == 0.2
    assert resolved["model"] == {"name": "mlp", "hidden": [8], "bias": True, "dropout": 0.0}
    again = from_dict(tomllib.loads(tomli_w.dumps(resolved)))
    assert again.resolved() == resolved
    assert again.algorithm() == first.algorithm()


def test_preset_gives_way_to_explicit_keys(file: Path) -> None:
    method = load_experiment(file, ["algorithm.preset=as-published", "algorithm.floor=0.25"]).algorithm()
    assert (method.fisher, method.floor) == ("masked", 0.25)


def test_resolved_preset_is_stable(file: Path) -> None:
    first = load_experiment(file, ["algorithm.preset=as-published"])
    assert from_dict(first.resolved()).algorithm() == first.algorithm()


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("rounds=3", ["rounds"], 3),
        ("train.optimizer=adam", ["train", "optimizer"], "adam"),
        ('algorithm.capacities."0.5"=1.0', ["algorithm", "capacities", "0.5"], 1.0),
        ('data.partition={by="iid"}', ["data", "partition"], {"by": "iid"}),
        ("data.name=a=b", ["data", "name"], "a=b"),
    ],
)
def test_parse_override(text: str, keys: list[str], value: object) -> None:
    assert parse_override(text) == (keys, value)


def test_an_override_replaces_what_it_stands_instead_of(file: Path) -> None:
    settings = load_experiment(file, ["train.epochs=2", "algorithm.clients_per_round=3"]).settings
    assert (settings.train.steps, settings.train.epochs) == (None, 2)
    assert "participation" not in settings.algorithm


@pytest.mark.parametrize("named_last", [False, True])
def test_an_override_replaces_what_the_method_says_that_it_stands_instead_of(named_last: bool) -> None:
    Path("rkg.toml").write_text(
        "rounds = 1\n[data]\nname = 'synthetic_ratings'\n[model]\nname = 'item_table'\n"
        f"[algorithm]\nname = '{'fedmf' if named_last else 'fedrkg'}'\nbeta = 0.5\n"
    )
    named = ["algorithm.name=fedrkg"] if named_last else []
    found = load_experiment("rkg.toml", ["algorithm.strength=3", *named])
    assert (found.method.strength, found.method.beta) == (3.0, None)
    with pytest.raises(InputError, match="give beta or strength, not both"):
        load_experiment("rkg.toml", ["algorithm.strength=3", "algorithm.beta=0.1", *named])


def test_a_table_is_replaced_whole(file: Path) -> None:
    assert load_experiment(file, ['data.partition={by="iid"}']).settings.data.partition == {"by": "iid"}


def test_choose_keeps_what_the_other_method_has() -> None:
    table = {"name": "fedfibos", "participation": 0.5, "ema": 0.1, "server_learning_rate": 2.0}
    assert choose(table, "fedavg") == {"name": "fedavg", "participation": 0.5, "server_learning_rate": 2.0}


def test_data_table_has_every_option_of_the_loader() -> None:
    options = set(load.__kwdefaults__ or {})
    assert options <= set(Data.model_fields)


def test_algorithm_of_your_own(tmp_path: Path, file: Path) -> None:
    Path("mine.py").write_text("from fedfi.averaging.fedavg import FedAvg\nclass Not: pass\n")
    tables = tomllib.loads(file.read_text())
    tables["algorithm"] = {"name": "mine:FedAvg"}
    assert type(from_dict(tables).algorithm()).__name__ == "FedAvg"
    tables["algorithm"] = {"name": "mine:Not"}
    with pytest.raises(InputError, match="is not a subclass"):
        from_dict(tables)
    tables["algorithm"] = {"name": "mine:FedAvgg"}
    with pytest.raises(InputError, match="unknown name 'FedAvgg'"):
        from_dict(tables)


def test_path_is_absolute_in_resolved(file: Path) -> None:
    Path("table.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    tables = tomllib.loads(file.read_text())
    tables["data"] = {"name": "table.csv", "label": "label", "clients": 1}
    assert from_dict(tables).resolved()["data"]["name"] == str(Path("table.csv").resolve())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_valid(path: Path) -> None:
    with importing_from(path.parent):
        experiment = load_experiment(path)
        assert from_dict(experiment.resolved()).resolved() == experiment.resolved()
    sys.modules.pop("mymethod", None)
