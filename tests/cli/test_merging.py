from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedfi.federation.checkpoint import tensors_from_file, tensors_to_file
from fedfi.models import InputSpec, build

SPEC = InputSpec("image", (1, 8, 8), 4)
LABELS = ("0,1", "1,2,3")


@pytest.fixture
def parties(tmp_path):
    """Two parties with weights of their own and examples of some of four classes, and a data set to validate on."""
    rng = np.random.default_rng(0)
    for i, labels in enumerate(LABELS):
        torch.manual_seed(i)
        tensors_to_file(tmp_path / f"w{i}.safetensors", build("mlp", SPEC, {"hidden": (6,)}).state_dict())
        chosen = rng.choice([int(c) for c in labels.split(",")], 20 + i)
        images = rng.integers(0, 255, (20 + i, 8, 8, 1), dtype=np.uint8)
        np.savez(tmp_path / f"d{i}.npz", x_train=images, y_train=chosen, x_test=images, y_test=chosen)
    images = rng.integers(0, 255, (16, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "v.npz", x_train=images, y_train=np.arange(16) % 4, x_test=images, y_test=np.arange(16) % 4)
    return tmp_path


def upload(fedfi, folder, i, *more, method="fedfiot", out=None):
    out = out or folder / f"u{i}.safetensors"
    arguments = ["--model", "mlp", "--set", "model.hidden=[6]", "--classes", "4", "--for", method, "-o", str(out)]
    files = ["--weights", str(folder / f"w{i}.safetensors"), "--data", str(folder / f"d{i}.npz")]
    return fedfi("fisher", *files, *arguments, *more)


def uploads(fedfi, folder, *more, method="fedfiot"):
    for i in range(2):
        code, _, err = upload(fedfi, folder, i, *more, method=method)
        assert code == 0, err
    return [str(folder / f"u{i}.safetensors") for i in range(2)]


def test_two_parties_merge_without_a_server(fedfi, parties):
    files = uploads(fedfi, parties)
    out = parties / "merged.safetensors"
    code, printed, err = fedfi("merge", *files, "--validate", str(parties / "v.npz"), "-o", str(out), "--json")
    assert code == 0, err
    report = json.loads(printed)
    assert [p["party"] for p in report["parties"]] == ["u0", "u1"]
    assert [p["examples"] for p in report["parties"]] == [20, 21]
    assert all(p["distance"] > 0 and 0 <= p["score"] <= 1 for p in report["parties"])
    assert 0 <= report["score"] <= 1
    merge = report["merge"]
    assert {"objective/aligned", "objective/identity", "permuted", "permuted/hidden1.weight"} <= merge.keys()
    build("mlp", SPEC, {"hidden": (6,)}).load_state_dict(tensors_from_file(out))


def test_an_upload_is_no_longer_than_the_model(fedfi, parties):
    uploads(fedfi, parties)
    count = sum(t.numel() for t in tensors_from_file(parties / "w0.safetensors").values())
    assert (parties / "u0.safetensors").stat().st_size < 4 * count + 1500  # 4 bytes a parameter, and the header


@pytest.mark.parametrize(
    "method", ["regmean", "fedfisher", "fishermerge", "wbfusion", "otfusion", "rebasin", "pfnm", "fedma", "ensemble"]
)
def test_every_method_merges_files(fedfi, parties, method):
    files = uploads(fedfi, parties, method=method)
    more = ["--set", "steps=2"] if method == "fedfisher" else []
    code, printed, err = fedfi("merge", *files, "--method", method, "-o", str(parties / "m.safetensors"), *more)
    assert code == 0, err
    assert f"merged by {method}" in printed


def test_otfusion_merges_networks_of_other_widths(fedfi, parties):
    """The network of the party with most examples is what comes out; others refuse, naming both files."""
    tensors_to_file(parties / "w0.safetensors", build("mlp", SPEC, {"hidden": (9,)}).state_dict())
    code, _, err = upload(fedfi, parties, 0, "--set", "model.hidden=[9]", method="otfusion")
    assert code == 0, err
    code, _, err = upload(fedfi, parties, 1, method="otfusion")
    assert code == 0, err
    files, out = [str(parties / f"u{i}.safetensors") for i in range(2)], parties / "m.safetensors"
    more = ["--validate", str(parties / "v.npz"), "--json"]
    code, printed, err = fedfi("merge", *files, "--method", "otfusion", "-o", str(out), *more)
    assert code == 0, err
    assert 0 <= json.loads(printed)["score"] <= 1
    build("mlp", SPEC, {"hidden": (6,)}).load_state_dict(tensors_from_file(out))
    code, _, err = fedfi("merge", *files, "-o", str(out), "--method", "rebasin")
    assert code == 2
    assert "u0.safetensors" in err
    assert "differ in options" in err


def test_options_of_every_merge_from_files(fedfi, parties):
    files = uploads(fedfi, parties, "--set", "class_prior=1", method="average")
    arguments = ["merge", *files, "--method", "average", "-o", str(parties / "m.safetensors"), "--json"]
    options = [x for o in ("class_prior=1", "rescale=true", "tune_weights=1", 'distil="server"', "distil_steps=2")
               for x in ("--set", o)]  # fmt: skip
    code, printed, err = fedfi(*arguments, *options, "--validate", str(parties / "v.npz"))
    assert code == 0, err
    assert "tune/score" in json.loads(printed)["merge"]
    bare = uploads(fedfi, parties, method="average")
    code, _, err = fedfi("merge", *bare, *arguments[3:], "--set", "class_prior=1")
    assert code == 2
    assert err.endswith("'average' needs classes: make it with fedfi fisher --for average --set class_prior=1\n")


def test_task_vectors_need_a_base(fedfi, parties):
    files = uploads(fedfi, parties, method="ties")
    arguments = ["merge", *files, "--method", "ties", "-o", str(parties / "m.safetensors")]
    code, _, err = fedfi(*arguments)
    assert code == 2
    assert "--base FILE" in err
    assert fedfi(*arguments, "--base", str(parties / "w0.safetensors"))[0] == 0


def test_fedbens_takes_several_models_of_a_party(fedfi, parties):
    files = []
    for i in range(2):
        for j in range(2):
            out = parties / f"u{i}{j}.safetensors"
            assert upload(fedfi, parties, i, "--party", f"p{i}", "--bits", "32", method="fedbens", out=out)[0] == 0
            files.append(str(out))
    out = parties / "m.safetensors"
    code, _, err = fedfi("merge", *files, "--method", "fedbens", "--set", "steps=2", "-o", str(out))
    assert code == 0, err
    assert {n.split(".")[1] for n in tensors_from_file(out)} == {"0", "1"}


def test_what_does_not_fit_is_refused_with_both_sides(fedfi, parties):
    files = uploads(fedfi, parties)
    torch.manual_seed(0)
    tensors_to_file(parties / "w1.safetensors", build("mlp", SPEC, {"hidden": (7,)}).state_dict())
    code, _, err = upload(fedfi, parties, 1)
    assert code == 2
    assert err.startswith(f"{parties}/w1.safetensors: 'hidden1.weight' has shape [7, 64], expected [6, 64]") or (
        "has shape" in err
    )
    assert upload(fedfi, parties, 1, "--set", "model.hidden=[7]")[0] == 0
    code, _, err = fedfi("merge", *files, "-o", str(parties / "m.safetensors"))
    assert code == 2
    assert "u0.safetensors and" in err
    assert 'differ in options: {"hidden": [6]} and {"hidden": [7]}' in err


def test_what_was_measured_for_another_method_is_refused(fedfi, parties):
    files = uploads(fedfi, parties, method="regmean")
    code, _, err = fedfi("merge", *files, "-o", str(parties / "m.safetensors"))
    assert code == 2
    assert "was made for 'regmean' and holds gram; 'fedfiot' needs fisher" in err
    assert "fedfi fisher --for fedfiot" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw[: len(raw) // 2], "is not an upload"),
        (lambda raw: raw.replace(b"fedfi-upload-1", b"fedfi-upload-9"), "its format is 'fedfi-upload-9'"),
        (
            lambda raw: raw.replace(b'\\"mlp\\"', b'\\"cnn\\"'),
            "u1.safetensors: model 'cnn': hidden: unknown option 'hidden'",
        ),
    ],
)
def test_damaged_uploads_are_refused(fedfi, parties, change, said):
    files = uploads(fedfi, parties)
    path = parties / "u1.safetensors"
    path.write_bytes(change(path.read_bytes()))
    code, _, err = fedfi("merge", *files, "-o", str(parties / "m.safetensors"))
    assert code == 2
    assert said in err


def test_code_named_by_an_upload_is_not_run(fedfi, parties, monkeypatch):
    code = "from fedfi.models import build\ndef net(spec):\n    return build('mlp', spec, {'hidden': (6,)})\n"
    (parties / "mine.py").write_text(code)
    monkeypatch.chdir(parties)
    for i in range(2):
        files = ["--weights", f"w{i}.safetensors", "--data", f"d{i}.npz", "-o", f"u{i}.safetensors"]
        assert fedfi("fisher", "--model", "mine:net", "--classes", "4", *files)[0] == 0
    merge = ["merge", "u0.safetensors", "u1.safetensors", "-o", "m.safetensors"]
    code, _, err = fedfi(*merge)
    assert code == 2
    assert "its model is code, 'mine:net'; to run it say --model mine:net" in err
    assert fedfi(*merge, "--model", "mine:net")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bits", "20"], "--bits 20: must be 16 or 32 (nearest valid: 16)"),
        (["--classes", "0,1"], "--classes 0,1: unknown label '2'"),
        (["--classes", "0,1,2,"], "--classes 0,1,2,: label 4 is empty"),
        (["--classes", "0, 1,1"], "'1' stands there twice"),
        (["--for", "fedavg"], "method 'fedavg' does not merge models"),
        (["--for", "fedfit"], "did you mean 'fedfiot'?"),
        (["--set", "train.epochs=1"], "expected one of model.KEY, data.KEY"),
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors: cannot be read"),
    ],
)
def test_bad_arguments(fedfi, parties, arguments, said):
    code, _, err = upload(fedfi, parties, 1, *arguments)
    assert code == 2
    assert said in err


def test_bad_settings_of_a_method(fedfi, parties):
    files = uploads(fedfi, parties)
    merge = ["merge", *files, "-o", str(parties / "m.safetensors")]
    for arguments, said in (
        (["--set", "rho=[-1.0]"], "method fedfiot: rho.0 = -1.0: must be above 0"),
        (["--set", "rhoo=[0.1]"], "did you mean 'rho'?"),
        (["--method", "fedfiot:published"], "did you mean 'as-published'?"),
        (["--set", "model.hidden=[3]"], "expected one of data.KEY, KEY"),
    ):
        code, _, err = fedfi(*merge, *arguments)
        assert code == 2
        assert said in err


def test_the_name_of_a_folder_is_no_output(fedfi, parties):
    code, _, err = fedfi("merge", "no.st", "-o", "")
    assert code == 2
    assert err.startswith(".: is a folder, expected the name of a file")
    assert upload(fedfi, parties, 0, out=parties)[0] == 2


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
