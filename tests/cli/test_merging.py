from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfi.federation.checkpoint import tensors_from_file, tensors_to_file
from fedfi.federation.packet import Packet, decode
from fedfi.models import InputSpec, build
from fedfi.oneshot.header import sealed

SPEC = InputSpec("image", (1, 8, 8), 4)
LABELS = ("0,1", "1,2,3")
HUGE = '{"kind": "image", "shape": [1, 90000, 90000], "classes": 4}'


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


def resealed(raw, tensors=None, **scalars):
    """An upload with other content, and the digest that belongs to it."""
    packet = decode(raw)
    changed = {name: tensors[name](t) if name in (tensors or {}) else t for name, t in packet.tensors.items()}
    return sealed(Packet(changed, {**packet.scalars, **scalars})).encode()


def upload(fedfi, folder, i, *more, method="fedfiot", out=None):
    out = out or folder / f"u{i}.safetensors"
    hidden = [] if any(str(each).startswith("model.hidden=") for each in more) else ["--set", "model.hidden=[6]"]
    arguments = ["--model", "mlp", *hidden, "--classes", "4", "--for", method, "-o", str(out)]
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
        (lambda raw: raw.replace(b"fedfi-upload-2", b"fedfi-upload-9"), "its format is 'fedfi-upload-9'"),
        (
            lambda raw: resealed(raw, model="cnn"),
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


def refused(fedfi, *arguments):
    code, _, err = fedfi(*arguments)
    assert code == 2, err
    assert err.count("\n") == 1
    return err


def patients(path, order=("age", "pulse"), wards=("a", "b"), labels=("sick", "well")):
    """A table of 24 patients, who are sick above an age."""
    rng = np.random.default_rng(0)
    lines = [",".join([*order, "ward", "label"])]
    for i in range(24):
        row = {"age": str(20 + 2 * i), "pulse": str(int(rng.integers(50, 99)))}
        lines.append(",".join([*(row[name] for name in order), wards[i % 2], labels[int(i < 12)]]))
    path.write_text("\n".join(lines) + "\n")
    return path


def clinic(fedfi, folder, name, classes="sick,well", **more):
    """An upload of a small network of such a table."""
    torch.manual_seed(len(name))
    weights = folder / f"{name}.weights"
    spec = InputSpec("tabular", (4,), 2)
    tensors_to_file(weights, build("mlp", spec, {"hidden": (5,)}).state_dict())
    out, table = folder / f"{name}.upload", patients(folder / f"{name}.csv", **more)
    code, _, err = fedfi(
        "fisher", "--model", "mlp", "--set", "model.hidden=[5]", "--set", "data.label=label", "--weights", str(weights),
        "--data", str(table), "--classes", classes, "-o", str(out),
    )  # fmt: skip
    assert code == 0, err
    return str(out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": "well,sick"}, "labels: class 0 is 'sick' and 'well'"),
        ({"order": ("pulse", "age")}, "columns: number 0 is 'age' and 'pulse'"),
        ({"wards": ("a", "c")}, "categories of 'ward': number 1 is 'b' and 'c'"),
    ],
)
def test_what_inputs_and_classes_mean_is_compared(fedfi, tmp_path, change, said):
    """Same shapes, other meanings: of a second party, and of whoever judges."""
    mine, out = clinic(fedfi, tmp_path, "one"), str(tmp_path / "m.safetensors")
    other = clinic(fedfi, tmp_path, "other", **change)
    err = refused(fedfi, "merge", mine, other, "-o", out)
    assert f"{mine} and {other} differ in {said}" in err
    if "classes" not in change:
        judge = ["--validate", str(tmp_path / "other.csv"), "--set", "data.label=label"]
        err = refused(fedfi, "merge", mine, "-o", out, *judge)
        assert "other.csv differ in " + said in err
    good = ["--validate", str(patients(tmp_path / "judge.csv")), "--set", "data.label=label"]
    assert fedfi("merge", mine, "-o", out, *good)[0] == 0


def test_uploads_hold_no_statistics_of_examples(fedfi, tmp_path):
    inputs = json.loads(decode(Path(clinic(fedfi, tmp_path, "one")).read_bytes()).scalars["inputs"])
    assert not {"fill", "mean", "std"} & inputs.keys()
    assert inputs["labels"] == ["sick", "well"]


@pytest.mark.parametrize("link", [False, True])
def test_an_output_is_no_input(fedfi, parties, link):
    files = uploads(fedfi, parties)
    judge, weights = str(parties / "v.npz"), str(parties / "w0.safetensors")
    for given in (files[0], weights, judge, str(parties / "d0.npz")):
        out = given
        if link:
            out = str(parties / f"link{len(list(parties.iterdir()))}")
            Path(out).symlink_to(given)
        before = Path(given).read_bytes()
        if given.endswith("d0.npz"):
            err = upload(fedfi, parties, 0, out=out)[2]
        else:
            err = refused(fedfi, "merge", *files, "-o", out, "--validate", judge, "--base", weights)
        assert "which is read; choose another name" in err
        assert Path(given).read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensors": {"model/scales": lambda t: t.fill_(1e38)}}, "expected at most 1e+12"),
        ({"tensors": {"fisher/scales": lambda t: t.fill_(1e38)}}, "expected at most 1e+06"),
        ({"examples": 10**15}, "expected at most 1e+12"),
        ({"options": '{"hidden": [1000000000]}'}, "options.hidden.0 = 1e+09 is more than its"),
        ({"options": '{"hidden": [7]}'}, "holds 418 parameters, but 'mlp' with its options has"),
        ({"model": "roberta", "options": '{"checkpoint": "/nowhere"}'}, "its model is loaded from checkpoint"),
        ({"spec": HUGE}, "its spec is"),
        ({"spec": HUGE, "inputs": HUGE}, "an example is [1, 90000, 90000], expected at most 16,777,216 numbers"),
        ({"inputs": "[]"}, "its inputs are"),
        ({"digest": "0"}, None),
    ],
)
def test_uploads_that_no_party_writes_are_refused(fedfi, parties, changed, said):
    """What has a digest that fits, but asks for too much."""
    path = upload(fedfi, parties, 0) and parties / "u0.safetensors"
    path.write_bytes(resealed(path.read_bytes(), changed.pop("tensors", None), **changed))
    merge = ["merge", str(path), "-o", str(parties / "m.safetensors")]
    if said is None:  # the digest is made anew by `resealed`: this one is whole
        assert fedfi(*merge)[0] == 0
    else:
        assert said in refused(fedfi, *merge)


def test_a_flipped_byte_is_found(fedfi, parties):
    upload(fedfi, parties, 0)
    path = parties / "u0.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-40] ^= 1
    path.write_bytes(raw)
    assert "is damaged: its digest is" in refused(fedfi, "merge", str(path), "-o", str(parties / "m.safetensors"))


def test_an_upload_names_no_checkpoint(fedfi, parties):
    err = upload(fedfi, parties, 0, "--model", "roberta", "--set", 'model.checkpoint="x"')[2]
    assert "model.checkpoint: an upload names no place" in err


@pytest.mark.parametrize("bits", ["16", "32"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_and_base_are_finite(fedfi, parties, bits, value):
    files = uploads(fedfi, parties, method="ties")
    state = tensors_from_file(parties / "w0.safetensors")
    state["head.bias"][1] = value
    tensors_to_file(parties / "w0.safetensors", state)
    code, _, err = upload(fedfi, parties, 0, "--bits", bits)
    assert (code, err) == (2, f"{parties}/w0.safetensors: 'head.bias' holds 1 of 4 values that are not finite\n")
    base = ["--base", str(parties / "w0.safetensors"), "-o", str(parties / "m.safetensors")]
    for method in ("ties", "task-arithmetic"):
        assert "'head.bias' holds 1 of 4" in refused(fedfi, "merge", *files, "--method", method, *base)


def test_one_huge_weight_needs_32_bits(fedfi, parties):
    """Of 384 weights below 1 a step of 1e6 / 32767 leaves nothing."""
    state = tensors_from_file(parties / "w0.safetensors")
    state["hidden1.weight"][0, 0] = 1e6
    tensors_to_file(parties / "w0.safetensors", state)
    code, _, err = upload(fedfi, parties, 0)
    assert code == 2
    assert "16 bits change half of 'hidden1.weight' by more than 100.0%" in err
    assert "--bits 32" in err
    assert upload(fedfi, parties, 0, "--bits", "32")[0] == 0


def test_fisher_says_whether_weights_fit(fedfi, parties):
    """Weights whose bias alone answers: class 1 to a party with two thirds of it, class 0 to one without it."""
    for i, answer in enumerate((1, 0)):
        state = {n: torch.zeros_like(t) for n, t in tensors_from_file(parties / f"w{i}.safetensors").items()}
        state["head.bias"][answer] = 1.0
        tensors_to_file(parties / f"w{i}.safetensors", state)
    code, printed, err = upload(fedfi, parties, 0)
    assert code == 0
    assert "w0.safetensors: accuracy " in printed
    assert err == ""
    _, printed, err = upload(fedfi, parties, 1)
    assert "accuracy 0.0%" in printed
    assert err.startswith("note: ")
    assert "hardly better than guessing" in err


def test_parties_have_names_of_their_own(fedfi, parties):
    files = []
    for i in range(2):
        files.append(str(parties / f"f{i}" / "u.safetensors"))
        assert upload(fedfi, parties, i, out=files[-1])[0] == 0
    err = refused(fedfi, "merge", *files, "-o", str(parties / "m.safetensors"))
    assert f"{files[0]} and {files[1]} are both of party 'u'" in err
    assert "--party NAME" in err


def test_the_same_weights_twice_are_told(fedfi, parties):
    files = [str(parties / f"{name}.safetensors") for name in "ab"]
    for file in files:
        assert upload(fedfi, parties, 0, out=file)[0] == 0
    code, printed, err = fedfi("merge", *files, "-o", str(parties / "m.safetensors"), "--json")
    assert code == 0
    assert json.loads(printed)["notes"] == [f"{files[0]} and {files[1]} hold the same weights: they count twice"]
    assert "they count twice" in err


class Net(torch.nn.Module):
    """Two layers that share a matrix, and a batch norm."""

    def __init__(self):
        super().__init__()
        self.i = torch.nn.Linear(64, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.a, self.b, self.o = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        x = torch.relu(self.norm(self.i(x.flatten(1))))
        return self.o(torch.relu(self.b(torch.relu(self.a(x)))))


def net(spec):
    return Net()


def shared(fedfi, folder, i, *more, **values):
    """An upload of such a network, from a state dict with both names."""
    torch.manual_seed(i)
    state = {n: t.clone() for n, t in Net().state_dict().items()} | values
    tensors_to_file(folder / f"n{i}.safetensors", state)
    files = ["--weights", str(folder / f"n{i}.safetensors"), "--data", str(folder / f"d{i}.npz")]
    out = folder / f"n{i}.upload"
    arguments = ["--model", f"{__name__}:net", "--classes", "4", "-o", str(out)]
    return str(out), fedfi("fisher", *files, *arguments, *more)


@pytest.mark.parametrize("method", ["regmean", "fedfisher", "fedfiot", "rebasin"])
def test_tied_parameters_merge(fedfi, parties, method):
    made = [shared(fedfi, parties, i, "--for", method) for i in range(2)]
    assert [code for _, (code, _, _) in made] == [0, 0], made
    out = parties / "m.safetensors"
    more = ["--set", "steps=2"] if method == "fedfisher" else []
    files = [file for file, _ in made]
    code, _, err = fedfi("merge", *files, "--model", f"{__name__}:net", "--method", method, "-o", str(out), *more)
    assert code == 0, err
    state = tensors_from_file(out)
    assert torch.equal(state["a.weight"], state["b.weight"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("b.weight", torch.zeros(8, 8), "'b.weight' and 'a.weight' are one tensor of the network, but differ"),
        ("norm.running_var", -torch.ones(8), "'norm.running_var' holds -1, expected at least 0"),
        ("norm.running_var", torch.full((8,), torch.nan), "'norm.running_var' holds 8 of 8 values"),
    ],
)
def test_impossible_weights_are_refused(fedfi, parties, name, value, said):
    _, (code, _, err) = shared(fedfi, parties, 0, **{name: value})
    assert code == 2
    assert said in err


def test_a_negative_variance_in_an_upload_is_refused(fedfi, parties):
    file, (code, _, _) = shared(fedfi, parties, 0)
    assert code == 0
    path = parties / "n0.upload"
    path.write_bytes(resealed(path.read_bytes(), {"buffer:norm.running_var": lambda t: -t}))
    err = refused(fedfi, "merge", file, "--model", f"{__name__}:net", "-o", str(parties / "m.safetensors"))
    assert "'buffer:norm.running_var' of shape (8,) holds -1, expected at least 0" in err


def test_the_name_of_a_folder_is_no_output(fedfi, parties):
    code, _, err = fedfi("merge", "no.st", "-o", "")
    assert code == 2
    assert err.startswith(".: is a folder, expected the name of a file")
    assert upload(fedfi, parties, 0, out=parties)[0] == 2
