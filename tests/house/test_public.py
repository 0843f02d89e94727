"""`fedfi` has every method's class as an attribute, and type checkers know each of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedfi
from fedfi import registry


def typed() -> dict[str, str]:
    """What the block for type checkers imports: module by name."""
    tree = ast.parse(Path(fedfi.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    return {alias.name: str(n.module) for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}


def test_classes_are_those_of_the_registry() -> None:
    entries = [*registry.entries().values(), *registry.wrappers().values()]
    classes = {e.target.partition(":")[2]: e.target.partition(":")[0] for e in entries}
    assert len(classes) == len(entries), "two methods have classes of one name"
    assert not classes.keys() & fedfi._HOMES.keys()
    assert typed() == classes | {name: f"fedfi.{home}" for name, home in fedfi._HOMES.items()}
    assert sorted(fedfi.__all__) == sorted(typed())
    assert set(dir(fedfi)) >= {*typed(), "__version__"}


def test_every_public_name_is_there() -> None:
    for name, entry in registry.entries().items():
        assert getattr(fedfi, entry.target.partition(":")[2]) is registry.algorithm(name)
    assert all(getattr(fedfi, name) is not None for name in fedfi.__all__)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("HeteroFl", "HeteroFL"),
        ("FedDropout", "FederatedDropout"),
        ("feddropout", "FederatedDropout"),
        ("lg_fedavg", "LGFedAvg"),
        ("Rebasin", "GitReBasin"),
        ("FedAverage", None),
        ("Trainin", "Training"),
    ],
)
def test_a_wrong_name_is_told_the_nearest(given: str, meant: str | None) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(fedfi, given)
    assert str(caught.value).startswith(f"module 'fedfi' has no attribute {given!r}; ")
    if meant:
        assert str(caught.value).endswith(f"; did you mean fedfi.{meant}?")


def test_modules_and_private_names_are_no_methods() -> None:
    code = (
        "import sys, fedfi\n"
        "assert not hasattr(fedfi, '_nothing') and not hasattr(fedfi, 'channels')\n"
        "assert not {'torch', 'pydantic', 'fedfi.registry'} & set(sys.modules)\n"
        "from fedfi import channels, HeteroFL\n"
        "assert HeteroFL.__name__ == 'HeteroFL' and fedfi.channels is channels\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
