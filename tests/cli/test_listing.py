from __future__ import annotations

import json
import re

import pytest
import typer

from fedfi import registry
from fedfi.cli.app import app
from fedfi.cli.reference import reference
from fedfi.experiment import Data, Settings
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.task import Training
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
