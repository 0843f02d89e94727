from __future__ import annotations

import json
import re

import pytest
import typer

from fedfi import registry
from fedfi.cli.app import app
from fedfi.cli.reference import reference
from fedfi.cli.tables import model_keys
from fedfi.data.settings import Data
from fedfi.experiment import Settings
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.task import Training
from fedfi.models import available
from fedfi.validation import fields_of


@pytest.mark.parametrize("what", ["algorithms", "datasets", "models", "partitions"])
def test_list(fedfi, what: str) -> None:
    code, out, _ = fedfi("list", what, "--json")
    assert code == 0
    rows = json.loads(out)
    assert all(set(row) == {"name", "family", "summary", "paper"} for row in rows)
    code, out, _ = fedfi("list", what)
    assert all(row["name"] in out for row in rows)


def test_every_entry_loads_and_is_documented() -> None:
    for name, entry in registry.entries().items():
        kind = registry.algorithm(name)
        assert entry.paper
        for key, field in kind.__pydantic_fields__.items():
            assert field.description, f"{name}.{key} has no description"


def test_show(fedfi) -> None:
    _, out, _ = fedfi("show", "fedfibos", "--paper")
    for part in ("arXiv:2609.19559", "The defaults deviate", "capacities", "as-published", "start"):
        assert part in out
    assert "test_fraction" in fedfi("show", "digits")[1]
    assert "hidden" in fedfi("show", "mlp")[1]
    assert fedfi("show", "dirichlet")[0] == 0
    code, _, err = fedfi("show", "fedfibo")
    assert code == 2
    assert err.startswith("unknown name 'fedfibo'; did you mean 'fedfibos'?")


def test_a_list_is_a_line_each_by_family(fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    out = fedfi("list", "algorithms")[1]
    entries = registry.entries()
    lines = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert lines == [[name, entry.summary] for name, entry in entries.items()]
    assert [line for line in out.splitlines() if line and "\t" not in line] == list(
        dict.fromkeys(entry.family for entry in entries.values())
    )
    monkeypatch.setattr("fedfi.cli.listing._console", lambda: Console(width=80, force_terminal=True))
    out = fedfi("list", "algorithms", "--family", "submodel")[1]
    assert max(map(len, out.splitlines())) <= 80
    assert "fedfibos" in out
    assert "fedavg" not in out
    assert fedfi("list", "algorithms", "--family", "submodels")[2].startswith(
        "--family: unknown family 'submodels'; did you mean 'submodel'?"
    )
    assert fedfi("list", "models", "--family", "submodel")[0] == 2


def test_a_data_set_shows_the_keys_that_mean_something(fedfi) -> None:
    def shown(name: str) -> set[str]:
        return {line.split()[0] for line in fedfi("show", name)[1].splitlines() if line.startswith(" ")} - {"key"}

    assert shown("digits") == {"clients", "partition", "validation", "test_fraction", "augment"}
    assert {"label", "group", "columns"} <= shown("heart_disease")
    assert shown("heart_disease").isdisjoint({"augment", "vocabulary", "negatives"})
    assert "vocabulary" in shown("ag_news")
    assert shown("filmtrust") == {"min_interactions", "negatives", "negatives_per_positive"}


def test_every_option_of_every_model_is_described() -> None:
    for name in available():
        for key in model_keys(name):
            assert key.description, f"{name}.{key.name}"


def test_show_of_the_keys_that_all_methods_have(fedfi) -> None:
    out = fedfi("show", "algorithm")[1]
    for key in ("name", "preset", "participation", "clients_per_round"):
        assert f" {key} " in out
    assert "variant" in fedfi("show", "compare")[1]


def test_version(fedfi) -> None:
    from fedfi import __version__

    assert fedfi("--version") == (0, f"{__version__}\n", "")


def test_show_of_tables_and_partitions(fedfi) -> None:
    out = fedfi("show", "train")[1]
    for part in ("learning_rate", "float, > 0", "0.1", "step size of the local optimizer"):
        assert part in out
    assert "min_replies" in fedfi("show", "experiment")[1]
    assert "test_fraction" in fedfi("show", "data")[1]
    assert "levels" in fedfi("show", "evaluate")[1]
    assert "concentration" in fedfi("show", "dirichlet")[1]


def test_the_reference_names_every_key() -> None:
    page = reference()
    for kind in (Settings, Data, Training, Evaluate, *map(registry.algorithm, registry.entries())):
        for key in fields_of(kind):
            assert f"| `{key}` |" in page or f"`[{key}]" in page or key == "compare", key


def test_help_hides_nothing(fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes what is in brackets for markup unless it is escaped."""
    monkeypatch.setenv("COLUMNS", "300")
    command = typer.main.get_command(app)
    for name, inner in command.commands.items():
        shown = re.sub(r"[\s│]+", "", fedfi(name, "--help")[1])
        texts = [inner.help, *(parameter.help for parameter in inner.params if getattr(parameter, "help", None))]
        for text in texts:
            for word in text.replace("\\[", "[").split():
                assert word in shown, f"fedfi {name} --help lacks {word!r}"


@pytest.mark.parametrize("name", ["heterofl", "feddropout", "fedfi.submodel.heterofl:HeteroFL"])
def test_a_method_says_how_python_imports_it(fedfi, name: str) -> None:
    code, out, _ = fedfi("show", name)
    line = next(line for line in out.splitlines() if line.startswith("in Python: "))
    found: dict[str, type] = {}
    exec(line.removeprefix("in Python: "), found)
    assert code == 0
    assert registry.algorithm(name) in found.values()


@pytest.mark.parametrize(("name", "kind"), [("private", "Private"), ("[algorithm.encrypted]", "Encrypted")])
def test_a_wrapper_says_how_it_is_imported(fedfi, name, kind):
    code, out, _ = fedfi("show", name)
    assert code == 0
    assert f"from fedfi import {kind}; {kind}(algorithm=...)" in out
