"""The server's side has no way to a secret key, and optional libraries are missed politely."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from pathlib import Path

import pytest

import fedfi
from fedfi.crypto import summing, threshold
from fedfi.errors import InputError

SOURCE = Path(fedfi.__file__).parent


def reached(module: str) -> set[str]:
    """Modules of ours that a module imports, however indirectly."""
    found: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        path = SOURCE / (name.replace(".", "/") + ".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedfi."):
                base = node.module.removeprefix("fedfi.")
                for candidate in [base, *(f"{base}.{a.name}" for a in node.names)]:
                    if (SOURCE / (candidate.replace(".", "/") + ".py")).exists():
                        todo.append(candidate)
    return found


SERVER = ["crypto.summing", "crypto.roster", "crypto.message", "personal.encryption", "personal.tally"]


@pytest.mark.parametrize("module", SERVER)
def test_what_a_server_needs_cannot_reach_what_knows_secrets(module):
    assert not reached(module) & {"crypto.secret", "crypto.keys", "personal.sealing"}


def test_a_sum_has_no_place_for_a_key():
    taken = inspect.signature(summing.CipherSum.__init__).parameters
    assert set(taken) == {"self", "parameters"}
    assert summing.CipherSum.__slots__ == ("_evaluator", "_parameters", "_sum", "count")


@pytest.fixture
def without(monkeypatch):
    """Makes an import fail."""
    plain = builtins.__import__

    def forbid(package):
        def refuse(name, *args, **kwargs):
            if name.split(".")[0] == package:
                raise ImportError(f"No module named {package!r}")
            return plain(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", refuse)

    return forbid


def test_a_missing_extra_is_named(without):
    from fedfi.crypto import seal

    without("tenseal")
    with pytest.raises(InputError, match=r"fedfi\[he\]"):
        seal._library()


def test_missing_cryptography_is_named(without, monkeypatch):
    pytest.importorskip("cryptography")
    from fedfi.crypto.identity import Identity

    monkeypatch.delitem(sys.modules, "fedfi.crypto.door", raising=False)
    without("cryptography")
    with pytest.raises(InputError, match=r"fedfi\[he\]"):
        Identity.new().public()


def test_missing_openfhe_is_named(without):
    without("openfhe")
    assert not threshold.available()
    with pytest.raises(InputError, match=r"fedfi\[threshold\]"):
        threshold.ThresholdGroup(["a", "b", "c"])


@pytest.mark.skipif(not threshold.available(), reason="openfhe has no binaries for this Python")
def test_keys_in_parts_need_all_members():
    group = threshold.ThresholdGroup(["a", "b", "c"])
    total = group.add([group.encrypt([1, -2]), group.encrypt([10, 20])])
    shares = [group.share(m, total, lead=m == "a") for m in ["a", "b", "c"]]
    assert group.fuse(shares, 2) == [11, 18]
    with pytest.raises(InputError, match="2 parts"):
        group.fuse(shares[:2], 2)
