from __future__ import annotations

import pytest

from fedfi.cli import main

pytest.importorskip("cryptography", reason="the extra 'he' is not installed")


def fedfi(*arguments: str) -> int:
    return main(list(arguments))


def test_new_show_rotate_wrap(tmp_path, capsys):
    folder = str(tmp_path / "keys")
    assert fedfi("keys", "new", folder, "--clients", "a,b,VA Long Beach") == 0
    first = capsys.readouterr().out
    assert first.startswith("key ")
    assert "epoch 1" in first
    assert fedfi("keys", "show", folder) == 0
    assert capsys.readouterr().out == first
    assert fedfi("keys", "rotate", folder, "--remove", "b", "--add", "d") == 0
    assert "epoch 2" in capsys.readouterr().out
    assert fedfi("keys", "wrap", folder, "--by", "a", "--for", "d") == 0
    assert "VA Long Beach" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new"], "--clients"),
        (["new", "--clients", "a,b"], "at least 3"),
        (["show"], "fedfi keys new"),
        (["new", "--clients", "a,b,c", "--parameters", "bfv-2048"], "choose from bfv-4096"),
    ],
)
def test_wrong_use_is_one_line(arguments, said, tmp_path, capsys):
    command, *rest = arguments
    assert fedfi("keys", command, str(tmp_path / "none"), *rest) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
