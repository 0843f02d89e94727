from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from fedfi.cli import doctor, main


def test_it_names_versions_devices_and_extras(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["devices"][0].startswith("cpu")
    assert found["extras"]["text"]["packages"]["transformers"] == metadata.version("transformers")
    assert not set(found["extras"]) & {"dev", "docs", "bench"}


def test_a_missing_extra_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requires = ["torch>=2.6", "nosuchpackage>=1; extra == 'he'", "ruff; extra == 'dev'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: requires)
    assert main(["doctor"]) == 0
    assert "missing nosuchpackage: pip install 'fedfi[he]'" in capsys.readouterr().out


def test_data_are_named_where_they_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cifar10", "filmtrust", "holiday-pictures"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "cifar100").mkdir()  # and nothing in it
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["found"] == ["cifar10", "filmtrust"]
    assert data["embedded"] == ["digits", "breast_cancer", "synthetic_ratings"]
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path / "nowhere"))
    assert main(["doctor"]) == 0
    assert "which is no folder" in capsys.readouterr().out
    monkeypatch.delenv("FEDFI_DATA")
    assert main(["doctor"]) == 0
    assert "not set: a folder" in capsys.readouterr().out
