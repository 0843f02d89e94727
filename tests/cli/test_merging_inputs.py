"""`--inputs`: hospitals that lack a category or a class, and judges with a few rows, read data as all others do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.test_merging import clinic, parties, patients, refused, upload

from fedfi import Dataset, Inputs
from fedfi.cli.merging import _inputs_of
from fedfi.federation.checkpoint import tensors_to_file
from fedfi.federation.packet import decode
from fedfi.models import InputSpec, build

__all__ = ["parties"]

HIDDEN = ["--model", "mlp", "--set", "model.hidden=[5]", "--set", "data.label=label"]


def weights(path, columns):
    spec = InputSpec("tabular", (columns,), 2)
    tensors_to_file(path, build("mlp", spec, {"hidden": (5,)}).state_dict())
    return str(path)


def few(path, *rows):
    path.write_text("\n".join(["ward,label,age,pulse", *rows]) + "\n")
    return str(path)


@pytest.fixture
def ward(fedfi, tmp_path):
    """The upload of a hospital with two wards, and the table of one that has one ward and one class."""
    return clinic(fedfi, tmp_path, "one"), few(tmp_path / "few.csv", "b,sick,40,70", "b,sick,60,80")


def test_a_party_that_lacks_a_category_and_a_class_takes_part(fedfi, tmp_path, ward):
    whole, table = ward
    fisher = ["fisher", *HIDDEN, "--weights", weights(tmp_path / "w", 4), "--data", table]
    out = str(tmp_path / "few.upload")
    err = refused(fedfi, *fisher, "--classes", "sick,well", "-o", out)
    assert "'hidden1.weight' has shape [5, 4], expected [5, 3] for the columns that the data have" in err
    assert "(2 numbers, 1 category of 'ward'); if they lack a category, --inputs FILE names all" in err
    code, _, err = fedfi(*fisher, "--inputs", whole, "-o", out)
    assert code == 0, err
    scalars = [decode(Path(path).read_bytes()).scalars for path in (whole, out)]
    assert scalars[0]["inputs"] == scalars[1]["inputs"]
    code, _, err = fedfi("merge", whole, out, "-o", str(tmp_path / "m.safetensors"))
    assert code == 0, err


def test_a_judge_with_two_rows(fedfi, tmp_path, ward):
    whole, table = ward
    merge = ["merge", whole, "-o", str(tmp_path / "m.safetensors"), "--set", "data.label=label"]
    err = refused(fedfi, *merge, "--validate", table)
    assert f"{whole} and --validate {table} differ in categories of 'ward': number 0 is 'a' and 'b'" in err
    assert f"(only the first has 'a'); --inputs {whole} reads them with the uploads' columns and categories" in err
    code, printed, err = fedfi(*merge, "--validate", table, "--inputs", whole, "--json")
    assert code == 0, err
    assert 0 <= json.loads(printed)["score"] <= 1
    assert "numbers are normalised by 2 examples, which are few" in err
    inputs = Inputs.read(tmp_path / "m.safetensors")
    assert (inputs.labels, dict(inputs.categories)) == (("sick", "well"), {"ward": ("a", "b")})
    assert inputs.mean[:2].tolist()[0] == 50.0


def test_what_the_inputs_do_not_know_is_refused(fedfi, tmp_path, ward):
    fisher = ["fisher", *HIDDEN, "--weights", weights(tmp_path / "w", 4), "-o", str(tmp_path / "u")]
    table = few(tmp_path / "new.csv", "b,sick,40,70", "c,sick,60,80")
    err = refused(fedfi, *fisher, "--data", table, "--inputs", ward[0])
    assert err.startswith("data 'new': column 'ward', line 3: unknown category 'c' (choose from a, b)")
    table = few(tmp_path / "new.csv", "b,sick,40,70", "a,dead,60,80")
    assert "unknown label 'dead'" in refused(fedfi, *fisher, "--data", table, "--inputs", ward[0])


def test_uploads_of_other_columns_name_the_category(fedfi, tmp_path, ward):
    out = str(tmp_path / "few.upload")
    fisher = ["fisher", *HIDDEN, "--weights", weights(tmp_path / "w", 3), "--data", ward[1], "--classes", "sick,well"]
    assert fedfi(*fisher, "-o", out)[0] == 0
    err = refused(fedfi, "merge", ward[0], out, "-o", str(tmp_path / "m"))
    assert "differ in categories of 'ward': number 0 is 'a' and 'b' (only the first has 'a'); models of the same" in err
    assert "fedfi.load(..., inputs=FILE)" in err
    assert "fedfi fisher --inputs FILE" in err


@pytest.mark.parametrize("normalised", [True, False])
def test_a_normalisation_in_the_file_is_that_of_all(fedfi, tmp_path, ward, normalised):
    """Weights that call sick whose pulse is above the mean: the party's own, 75, or that of the file, 100."""
    record = decode(Path(ward[0]).read_bytes()).scalars["inputs"]
    given = json.loads(record)
    if normalised:
        given |= {"fill": [0.0] * 4, "mean": [0.0, 100.0, 0.0, 0.0], "std": [1.0] * 4}
    (tmp_path / "inputs.json").write_text(json.dumps(given))
    spec = InputSpec("tabular", (4,), 2)
    state = {n: torch.zeros_like(t) for n, t in build("mlp", spec, {"hidden": (5,)}).state_dict().items()}
    state["hidden1.weight"][0, 1] = 1.0  # the pulse
    state["head.weight"][0, 0], state["head.bias"][1] = 1.0, 1e-3
    tensors_to_file(tmp_path / "w", state)
    table = few(tmp_path / "p.csv", "b,sick,40,80", "b,well,60,70")
    fisher = ["fisher", *HIDDEN, "--weights", str(tmp_path / "w"), "--data", table, "-o", str(tmp_path / "u")]
    code, printed, err = fedfi(*fisher, "--inputs", str(tmp_path / "inputs.json"))
    assert ("which are few" in err) is not normalised
    assert code == 0
    assert f"accuracy {'50' if normalised else '100'}.0%" in printed  # all pulses are below 100
    assert "mean" not in json.loads(decode((tmp_path / "u").read_bytes()).scalars["inputs"])


def test_inputs_without_effect_or_against_classes(fedfi, tmp_path, ward):
    out = ["-o", str(tmp_path / "m")]
    err = refused(fedfi, "merge", ward[0], *out, "--inputs", ward[0])
    assert "is about the data of --validate, which is not given" in err
    merge = ["merge", ward[0], *out, "--validate", ward[1], "--inputs", ward[0], "--set", "data.label=label"]
    err = refused(fedfi, *merge, "--classes", "well,sick")
    assert f"--classes well,sick: {ward[0]} says that classes are sick,well; leave one of the two out" in err
    assert fedfi(*merge, "--classes", "sick,well")[0] == 0
    assert "which is read" in refused(fedfi, *merge[:3], ward[0], *merge[4:])


def test_columns_that_the_inputs_do_not_name_are_told(fedfi, tmp_path, ward):
    patients(tmp_path / "more.csv")
    lines = [
        f"{line},{'nurse' if i == 0 else 'n'}" for i, line in enumerate((tmp_path / "more.csv").read_text().split())
    ]
    (tmp_path / "more.csv").write_text("\n".join(lines) + "\n")
    fisher = ["fisher", *HIDDEN, "--weights", weights(tmp_path / "w", 4), "--data", str(tmp_path / "more.csv")]
    code, _, err = fedfi(*fisher, "--inputs", ward[0], "-o", str(tmp_path / "u"))
    assert code == 0
    assert "note: column 'nurse': left out, since the inputs do not name it" in err


def test_an_upload_is_no_file_to_prepare_rows_by(fedfi, tmp_path, ward):
    with pytest.raises(ValueError, match="is an upload of fedfi fisher"):
        Inputs.read(ward[0])
    assert fedfi("merge", ward[0], "-o", str(tmp_path / "m.safetensors"))[0] == 0
    with pytest.raises(ValueError, match="says nothing of a model's inputs; merge with --validate"):
        Inputs.read(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--party", ""], "--party '': is empty, expected a name (nearest valid: 'u0', the upload's)"),
        (["--party", " "], "--party ' ': is empty"),
        (["--set", "fisher='exact'", "--set", "fisher='observed'"], "fisher is given twice, expected once"),
        (["--set", "data.label='a'", "--set", "data.label='b'"], "data.label is given twice, expected once"),
        (["--limit", "5", "--for", "average"], "--limit 5: limits the examples that are measured"),
        (["--inputs", "nowhere.json"], "nowhere.json: no such file"),
    ],
)
def test_what_has_no_effect_or_no_meaning(fedfi, parties, arguments, said):
    assert said in upload(fedfi, parties, 0, *arguments)[2]


def test_an_empty_file_is_said_to_be_empty(fedfi, parties):
    np.savez(parties / "d0.npz", x=np.zeros((0, 8, 8, 1), dtype=np.uint8), y=np.zeros(0, dtype=int))
    assert "has no examples: its labels are []" in upload(fedfi, parties, 0)[2]


@pytest.mark.parametrize("rows", [["well"] * 5, ["sick"]])
def test_a_party_of_one_class_or_of_one_example_takes_part(fedfi, parties, rows, monkeypatch):
    monkeypatch.chdir(parties)
    tensors_to_file(parties / "w.st", build("mlp", InputSpec("tabular", (1,), 2), {"hidden": (6,)}).state_dict())
    lines = "".join(f"{i},{label}\n" for i, label in enumerate(rows))
    (parties / "p.csv").write_text(f"age,label\n{lines}")
    arguments = ["fisher", "--model", "mlp", "--set", "model.hidden=[6]", "--weights", "w.st", "--data", "p.csv"]
    code, _, err = fedfi(*arguments, "-o", "u.st")
    assert code == 2
    assert "expected at least 2 classes" in err
    code, _, err = fedfi(*arguments, "-o", "u.st", "--classes", "sick,well")
    assert code == 0, err
    code, _, err = fedfi("merge", "u.st", "-o", "m.st", "--validate", "p.csv", "--classes", "sick,well")
    assert code == 0, err


@pytest.mark.parametrize("judged", [False, True])
def test_inputs_of_a_merged_file_have_the_judges_normalisation(judged):
    spec = InputSpec("tabular", (2,), 2)
    data = Dataset(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([0, 1]), spec).fitted()
    found = _inputs_of(Inputs(spec, labels=("a", "b")), data.examples() if judged else None)
    assert ("inputs" in found) is judged
    if judged:
        record = json.loads(found["inputs"])
        assert record["labels"] == ["a", "b"]
        assert record["mean"] == data.mean.tolist()


def test_data_that_a_network_does_not_take_are_named(fedfi, parties, monkeypatch):
    """A network of code has the width that it has, whatever the data."""
    monkeypatch.chdir(parties)
    code = "import torch\ndef net(spec):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 4))\n"
    (parties / "narrow.py").write_text(code)
    tensors_to_file(
        parties / "n.safetensors", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 4)).state_dict()
    )
    for method in ("fedfiot", "average"):
        given = ["--model", "narrow:net", "--weights", "n.safetensors", "--data", "d0.npz", "--classes", "4"]
        found, _, err = fedfi("fisher", *given, "--for", method, "-o", "n.upload")
        assert found == 2
        assert "n.safetensors: narrow:net on inputs [2, 1, 8, 8]" in err
        assert not Path("n.upload").exists()
