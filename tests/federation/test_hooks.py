"""What a method's own functions return wrongly, or raise: one line that names the function and the user's line."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from tests.tiny import small

import fedfi
from fedfi.averaging.fedavg import FedAvg
from fedfi.importing import place


def own(**functions):
    """A method like FedAvg, but for some functions."""
    body = {"train": lambda self, client: fedfi.train_locally(client), "__module__": __name__, **functions}
    return fedfi.method(type("Own", (fedfi.Averaging,), body))()


def returns(value):
    return lambda self, *arguments: value


PACKET = fedfi.Packet({"w": torch.zeros(2)})


@pytest.mark.parametrize(
    ("hook", "value", "text"),
    [
        ("train", None, r"Own.train must return a fedfi.Trained, as train_locally\(client\) does, got None"),
        ("train", (1.0, 2, 3), "Own.train must return a fedfi.Trained, .* got a tuple"),
        ("train", fedfi.Trained(torch.tensor(1.0), 1, 1), "got a Tensor as 'loss'; give its .item()"),
        ("client_update", None, "Own.client_update must return a fedfi.Packet, got None"),
        ("client_update", 3, "Own.client_update must return a fedfi.Packet, got 3"),
        ("client_update", fedfi.Packet({"w": 3}), "tensors are tensors by name, got 3 as 'w'"),
        ("client_update", fedfi.Packet([3]), "tensors are tensors by name, got a list"),
        ("init", None, "Own.init must return the server's state, got None"),
        ("configure", None, "Own.configure must return pairs of a client and a fedfi.Packet, got None"),
        ("configure", PACKET, "Own.configure must return pairs of a client and a fedfi.Packet, got a Packet"),
        ("configure", ["c0"], "Own.configure must return pairs .* got 'c0' as one of them"),
        ("configure", [(0, PACKET)], "pairs of a client and a fedfi.Packet, whose client is a text, got 0 as a client"),
        ("configure", [("c0", {})], "Own.configure must return a fedfi.Packet, got a dict as a packet"),
        ("configure", [("c0", PACKET)] * 2, "Own.configure names client 'c0' twice"),
        ("reply_layout", None, "Own.reply_layout must return a fedfi.Layout, got None"),
        ("aggregate", None, "Own.aggregate must return the next state and a dictionary of numbers, got None"),
        ("aggregate", {}, "Own.aggregate must return the next state .* got a dict"),
        ("aggregate", (None, {}), "Own.aggregate must return the next state .* got None as the state"),
        ("aggregate", (1, None), "Own.aggregate must return the next state .* got None as the dictionary"),
        ("aggregate", (1, {"a": torch.ones(())}), "got a Tensor as 'a'; give its .item()"),
        ("global_model", None, "Own.global_model must return every parameter and buffer by name, got None"),
        ("global_model", {"w": 3}, "Own.global_model must return every parameter and buffer by name, got 3 as 'w'"),
        ("configure_evaluation", None, "Own.configure_evaluation must return pairs"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_hook_returns_wrongly(hook, value, text, workers) -> None:
    if workers == 2 and not hook.startswith(("train", "client")):
        pytest.skip("is not work of clients")
    with pytest.raises((fedfi.InputError, fedfi.RunError), match=text) as caught:
        fedfi.run(own(**{hook: returns(value)}), small(2), rounds=1, workers=workers)
    assert "\n" not in str(caught.value)


def test_a_client_that_judges_itself_wrongly_is_named() -> None:
    result = fedfi.run(own(client_evaluate=returns({"accuracy": torch.ones(())})), small(2), rounds=1)
    assert {f.stage for f in result.failures} == {"client_evaluate"}
    assert "Own.client_evaluate must return numbers by name, got a Tensor as 'accuracy'" in result.failures[0].error


def fails(self, *arguments):
    return {}["missing"]


LINE = inspect.getsourcelines(fails)[1] + 1


@pytest.mark.parametrize("hook", ["init", "configure", "reply_layout", "aggregate", "global_model"])
def test_what_the_server_half_raises_is_one_line_with_its_place(hook) -> None:
    with pytest.raises(fedfi.RunError) as caught:
        fedfi.run(own(**{hook: fails}), small(2), rounds=1)
    assert str(caught.value) == f"Own.{hook} failed: KeyError: 'missing' (test_hooks.py, line {LINE})"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hook", ["train", "client_update"])
def test_what_a_client_raises_ends_with_its_place_and_its_trace_is_a_note(hook, workers, tmp_path) -> None:
    with pytest.raises(fedfi.RunError) as caught:
        fedfi.run(own(**{hook: fails}), small(2), rounds=1, workers=workers, out=tmp_path / "run")
    text = f"last failure: client 'c1' in client_update: KeyError: 'missing' (test_hooks.py, line {LINE})"
    assert str(caught.value).endswith(text)
    (note,) = caught.value.__notes__
    assert note.startswith("client 'c1':\nTraceback")
    assert f'test_hooks.py", line {LINE}, in fails' in note


def test_a_fault_of_fedfi_keeps_its_trace(monkeypatch) -> None:
    def broken(*arguments):
        return [].missing

    monkeypatch.setattr("fedfi.federation.hooks.place", lambda error: "")
    with pytest.raises(AttributeError, match="missing"):
        fedfi.run(own(init=broken), small(2), rounds=1)


def test_a_place_is_the_users_last_line_not_a_librarys() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(2, 3)(torch.zeros(1, 5))  # torch raises
    assert place(caught.value).startswith(" (test_hooks.py, line ")
    with pytest.raises(fedfi.RunError) as caught:
        raise_within_fedfi()
    assert "test_hooks.py" in place(caught.value)
    assert place(ValueError("never raised")) == ""


def raise_within_fedfi() -> None:
    task = small(2)
    fedfi.run(FedAvg(), dataclasses.replace(task, loss=lambda o, y: (o * float("nan")).sum(1)), rounds=1)


def test_presets_in_python() -> None:
    kind = fedfi.method(
        type(
            "Two",
            (fedfi.Averaging,),
            {"train": fails, "presets": {"half": {"participation": 0.5, "weights": "uniform"}}, "__module__": __name__},
        )
    )
    assert kind.preset("half") == kind(participation=0.5, weights="uniform")
    assert kind.preset("half", weights="examples") == kind(participation=0.5)
    assert kind.preset("half", clients_per_round=2) == kind(clients_per_round=2, weights="uniform")
    assert fedfi.FedFIbOS.preset("as-published") == fedfi.FedFIbOS(**fedfi.FedFIbOS.presets["as-published"])
    for call, text in (
        (lambda: kind.preset("hlaf"), r"Two: unknown preset 'hlaf'; did you mean 'half'\?"),
        (lambda: kind.preset("half", weight="uniform"), r"Two: weight: unknown key; did you mean 'weights'\?"),
        (lambda: fedfi.FedAvg.preset("half"), r"FedAvg: it has no presets \(got 'half'\)"),
        (lambda: kind(preset="hlaf"), r"Two: preset = 'hlaf': is no option; write Two.preset\('half'\)"),
        (lambda: fedfi.FedAvg(preset="half"), "FedAvg: preset: unknown key"),
    ):
        with pytest.raises(fedfi.InputError, match=text):
            call()
