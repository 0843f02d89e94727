"""The architecture's rules, read off the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedfi

SOURCE = Path(fedfi.__file__).parent

LEVELS = [
    {"cli", "report"},
    {"flower", "audit"},
    {"executing", "reproducing"},
    {"experiment", "composing"},
    {"federation.run", "registry"},
    {"engines", "parallel", "progress", "trackers"},
    {"averaging", "submodel", "oneshot", "personal", "recsys"},
    {"federation", "data", "models"},
    {"channels", "crypto", "privacy"},
    {"numerics"},
    {"arguments", "importing", "linechart", "room"},
    {"validation"},
    {"errors", "orphans", "printing"},
]
FAMILIES = LEVELS[6]
OPTIONAL = {
    "transformers",
    "tokenizers",
    "plotly",
    "matplotlib",
    "flwr",
    "cryptography",
    "tenseal",
    "openfhe",
    "ot",
    "dp_accounting",
    "pfl",
    "tensorboard",
    "mlflow",
}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imports(tree: ast.Module) -> set[str]:
    """Everything a module imports, wherever in the file, but for type checkers alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(name: str) -> str:
    return "federation.run" if name.startswith("federation.run") else name.split(".")[0]


def level(name: str) -> int:
    return next(i for i, rooms in enumerate(LEVELS) if room(name) in rooms)


def own(name: str) -> list[str]:
    """The fedfi modules that a module imports."""
    result = []
    for target in imports(MODULES[name]):
        if target.startswith("fedfi."):
            inner = target.removeprefix("fedfi.")
            while inner and inner not in MODULES:
                inner = inner.rpartition(".")[0]
            if inner:
                result.append(inner)
    return result


INNER = sorted(n for n in MODULES if n not in ("__init__", "__main__", ""))


@pytest.mark.parametrize("name", INNER)
def test_imports_point_down(name):
    for target in own(name):
        assert level(target) >= level(name), f"{name} imports {target}, which lies above it"


@pytest.mark.parametrize("name", [n for n in INNER if room(n) in FAMILIES])
def test_families_do_not_know_each_other(name):
    others = [t for t in own(name) if room(t) in FAMILIES and room(t) != room(name)]
    assert others == []


def test_there_is_no_cycle():
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for target in own(name):
                if target != name:
                    visit(target, (*path, name))
            done.add(name)

    for name in INNER:
        visit(name, ())


def test_numerics_knows_nothing_of_ours():
    for name in INNER:
        if room(name) == "numerics":
            assert all(room(t) == "numerics" for t in own(name))


@pytest.mark.parametrize("package", sorted(OPTIONAL))
def test_an_optional_dependency_has_one_door(package):
    users = {n for n in INNER for t in imports(MODULES[n]) if t.split(".")[0] == package}
    assert len(users) <= 1, f"{package} is imported in {sorted(users)}"


def test_nothing_is_pickled():
    for name in INNER:
        text = ast.unparse(MODULES[name])
        names = {t.split(".")[0] for t in imports(MODULES[name])}
        assert not names & {"pickle", "dill", "joblib", "cloudpickle", "shelve"}, name
        assert "torch.load" not in text, name
        assert "torch.save" not in text, name


def test_import_loads_no_extra_and_the_public_names_are_there():
    code = (
        "import sys, fedfi\n"
        f"assert not {OPTIONAL!r} & set(sys.modules)\n"
        "assert 'torch' not in sys.modules\n"
        "from fedfi import *\n"
        f"loaded = {OPTIONAL!r} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert all(getattr(fedfi, n) is not None for n in fedfi.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_hold_one_idea():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path
