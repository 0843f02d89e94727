"""Nothing that is given to `fedfi fisher` or `fedfi merge` is accepted without effect; messages name what was given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.cli.test_merging import SPEC, parties, refused, resealed, upload, uploads

from fedfi.federation.checkpoint import tensors_to_file
from fedfi.models import build

__all__ = ["parties"]


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        ("fedfiot", "upload_bits=32", "--set upload_bits=32: acts in rounds of a federation, not on files; fedfi fisher"
                                      " --bits 32 does it"),
        ("fedfiot", "measure_on=5", "fedfi fisher --limit 5 does it"),
        ("fedfiot", "participation=0.5", "leave out the uploads that are not to count"),
        ("fedfiot", "rho=[0.5]", "--set rho=[0.5]: changes nothing that a party measures; give it to fedfi merge"),
        ("fedbens", "models=3", "each model is an upload of its own, with the same --party"),
        ("ensemble", 'combine="logits"', "acts where the merged model runs, and is not in its file"),
    ],
)  # fmt: skip
def test_fisher_refuses_what_a_party_does_not_do(fedfi, parties, method, setting, said):
    err = upload(fedfi, parties, 0, "--set", setting, method=method)[2]
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "participation=0.5"], "--set participation=0.5: acts in rounds of a federation, not on files"),
        (["--set", "clients_per_round=1"], "leave out the uploads"),
        (["--set", 'initialization="independent"'], "a party starts wherever it likes"),
        (["--set", "upload_bits=32"], "fedfi fisher --bits 32 does it"),
        (["--set", "measure_on=5"], "fedfi fisher --limit 5 does it"),
        (["--set", 'reference="broadcast"'], "needs the model that all parties started from, but --base is not given"),
        (["--set", 'reference="tuned"', "--base", "BASE"], "acts in rounds of a federation"),
        (["--base", "BASE"], 'fedfiot with reference = "largest" does not look at it; --set \'reference='),
        (["--base", "BASE", "--method", "average"], "does not look at a common start; ties and task-arithmetic do"),
        (["--set", "data.foo=1"], "--set data.foo=1: is about the data of --validate, which is not given"),
        (["--classes", "4"], "--classes 4: is about the data of --validate, which is not given"),
        (["--model", "cnn"], "is of model 'mlp', which needs not be named"),
        (["--set", "rho=[0.3, 0.2]"], "of 2 candidates the best on examples is taken, but --validate is not given"),
        (["--set", 'fallback="validation"'], "needs examples to judge on, but --validate is not given"),
        (["--set", "reestimate=true"], "needs examples to judge on"),
        (["--set", "rescale=true"], "needs examples to judge on"),
        (["--set", 'distil="server"'], "needs examples to judge on"),
        (
            ["--set", "tune_weights=1"],
            "tune_weights judges on the server's examples, but there are none (--validate",
        ),
        (["--set", "distil_steps=3"], 'acts with distil = "server" or distil = "generated" alone'),
        (["--set", 'alignment="identity"', "--set", "iterations=3"], 'acts with alignment = "fisher" or'),
        (["--set", "rho=[1.5]"], "method fedfiot: rho.0 = 1.5: must be at most 1 (nearest valid: 1)\n"),
        (["--set", "damping=[1e30]"], "damping.0 = 1e+30: must be at most 1 (nearest valid: 1)\n"),
        (["--set", "rho=[0]"], "rho.0 = 0: must be above 0 (nearest valid: any number above 0)\n"),
        (["--set", "rho=0.3"], "rho = 0.3: must be a list (nearest valid: [0.3])"),
        (["--set", "rho=[.5, 1.]"], "digits on both sides of the point, such as --set 'rho=[0.5, 1.0]'"),
        (["--method", "fedfiot:as-published:x"], "--method fedfiot:as-published:x: expected NAME or NAME:PRESET"),
    ],
)
def test_merge_refuses_what_has_no_effect(fedfi, parties, arguments, said):
    files = uploads(fedfi, parties)
    given = [str(parties / "w0.safetensors") if each == "BASE" else each for each in arguments]
    err = refused(fedfi, "merge", *files, "-o", str(parties / "m.safetensors"), *given)
    assert said in err
    assert not (parties / "m.safetensors").exists()


def test_what_has_an_effect_is_taken(fedfi, parties):
    files, base = uploads(fedfi, parties, method="fedfiot:as-published"), str(parties / "w0.safetensors")
    merge = ["merge", *files, "-o", str(parties / "m.safetensors"), "--model", "mlp"]
    for more in (
        ["--method", "fedfiot:as-published"],
        ["--set", 'reference="broadcast"', "--base", base],
        ["--set", "rho=[0.2]", "--set", "reestimate=false"],
        ["--set", "rho=[0.2, 0.3]", "--validate", str(parties / "v.npz"), "--classes", "4"],
    ):
        code, _, err = fedfi(*merge, *more)
        assert code == 0, err


def test_what_is_asked_for_again_is_what_makes_it(fedfi, parties):
    """The advice for a missing statistic names the settings, and following it is the end of it."""
    files, merge = uploads(fedfi, parties), ["--set", 'fisher="exact"', "-o", str(parties / "m.safetensors")]
    err = refused(fedfi, "merge", *files, *merge)
    assert err.endswith("make it with fedfi fisher --for fedfiot --set 'fisher=\"exact\"'\n")
    files = uploads(fedfi, parties, "--set", 'fisher="exact"')
    assert fedfi("merge", *files, *merge)[0] == 0


class Asking(torch.nn.Module):
    """A network whose control flow depends on values."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 5), torch.nn.Linear(5, 4)

    def forward(self, x):
        x = self.a(x.flatten(1))
        return self.b(x.relu() if float(x.detach().sum()) > 0 else x.tanh())


def asking(spec):
    return Asking()


@pytest.mark.parametrize(
    ("method", "more", "who"),
    [("fedfiot", [], "--for fedfiot"), ("average", ["--set", "class_prior=1.0"], "--set class_prior=1.0")],
)
def test_a_network_without_channels_is_told_by_fisher(fedfi, parties, method, more, who):
    tensors_to_file(parties / "w0.safetensors", Asking().state_dict())
    common = ["--data", str(parties / "d0.npz"), "--weights", str(parties / "w0.safetensors"), "--classes", "4"]
    out = ["--model", f"{__name__}:asking", "-o", str(parties / "u.safetensors")]
    err = refused(fedfi, "fisher", *common, *out, "--for", method, *more)
    assert err.startswith(f"{who} needs channels: Asking cannot be traced")
    assert "for merges: average, fishermerge, regmean" in err


@pytest.mark.parametrize("method", ["average", "fishermerge", "regmean"])
def test_what_the_advice_names_merges_it(fedfi, parties, method):
    files = []
    for i in range(2):
        tensors_to_file(parties / f"w{i}.safetensors", Asking().state_dict())
        files.append(str(parties / f"u{i}.safetensors"))
        common = ["--data", str(parties / f"d{i}.npz"), "--weights", str(parties / f"w{i}.safetensors")]
        more = ["--classes", "4", "--model", f"{__name__}:asking", "-o", files[-1], "--for", method]
        code, _, err = fedfi("fisher", *common, *more)
        assert code == 0, err
    out = ["-o", str(parties / "m.safetensors"), "--model", f"{__name__}:asking", "--method", method]
    code, _, err = fedfi("merge", *files, *out)
    assert code == 0, err


def test_a_party_that_lacks_a_class_is_told_of_classes(fedfi, parties):
    images = np.zeros((6, 8, 8, 1), dtype=np.uint8)
    np.savez(parties / "few.npz", x=images, y=np.arange(6) % 3)
    tensors_to_file(parties / "w.safetensors", build("mlp", SPEC, {"hidden": (6,)}).state_dict())
    given = ["--model", "mlp", "--set", "model.hidden=[6]", "--weights", str(parties / "w.safetensors")]
    fisher = ["fisher", *given, "--data", str(parties / "few.npz"), "-o", str(parties / "u.safetensors")]
    err = refused(fedfi, *fisher)
    assert "expected [3" in err
    assert err.endswith("for the 3 classes that the data name; if they lack some, give all by --classes\n")
    err = refused(fedfi, *fisher, "--classes", "3")
    assert "--classes\n" not in err
    assert fedfi(*fisher, "--classes", "4")[0] == 0


def test_a_file_is_no_client(fedfi, parties):
    path = upload(fedfi, parties, 0) and parties / "u0.safetensors"
    path.write_bytes(resealed(path.read_bytes(), examples=0))
    err = refused(fedfi, "merge", str(path), "-o", str(parties / "m.safetensors"))
    assert err.startswith(f"{path}: scalar 'examples' is 0")
    assert "client '" not in err


def test_classes_below_zero_are_no_number(fedfi, parties):
    assert (
        "--classes -1: must be a whole number of at least 2 (nearest valid: 2)"
        in upload(fedfi, parties, 0, "--classes", "-1")[2]
    )
