from __future__ import annotations

import json

import pytest

from fedfi import registry


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
    _, out, _ = fedfi("show", "fedfibos")
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
