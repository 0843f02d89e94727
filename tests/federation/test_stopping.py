"""The best round by a number of the validation, its model, and the end of a run that waits too long for another."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny
from tests.recsys import small

from fedfi.averaging.fedavg import FedAvg
from fedfi.cli.summary import values_of
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError, RunError
from fedfi.federation import loop as running
from fedfi.federation.algorithm import Failure
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.record import read_lines
from fedfi.federation.run import run
from fedfi.federation.saved import last_state
from fedfi.federation.stopping import best_line
from fedfi.recsys.fedrkg import FedRKG
from fedfi.report.reading import read_run
from fedfi.submodel.fedfibos import FedFIbOS

SCORES = [0.1, 0.3, 0.2, 0.3, math.nan, 0.1, 0.2, 0.9]
"""Round 2 is the best; round 4 is no better, and with patience 3 the run ends after round 5."""
WAITING = Evaluate(best="validation/accuracy", patience=3)


@pytest.fixture
def scripted(monkeypatch):
    """Rounds are judged by `SCORES`."""

    def judge(self, state, round):
        return {"validation/accuracy": SCORES[round], "global/accuracy": 1.0 - SCORES[round]}

    monkeypatch.setattr(running.Loop, "_judge", judge)


def task():
    """With something kept for the validation, which `scripted` does not look at."""
    made = tiny.small()
    free = dataclasses.replace(made.data.test, indices=torch.arange(80, 90))
    return dataclasses.replace(made, data=dataclasses.replace(made.data, validation=free))


def test_the_first_of_the_best_lines_counts_and_losses_are_best_when_small():
    lines = [{"round": i + 1, "validation/accuracy": v, "validation/loss": v} for i, v in enumerate(SCORES[:7])]
    assert best_line(lines, "validation/accuracy")["round"] == 2
    assert best_line(lines, "validation/loss")["round"] == 1
    assert best_line(lines, "validation/f1") is None
    assert best_line([{"round": 1, "validation/loss": math.nan}], "validation/loss") is None


def test_a_run_ends_when_nothing_gets_better_and_gives_the_best_model(scripted, tmp_path):
    result = run(FedAvg(), task(), rounds=8, evaluate=WAITING, out=tmp_path / "run")
    assert (len(result.metrics), result.best) == (5, 2)
    shorter = run(FedAvg(), task(), rounds=2)
    assert all(torch.equal(result.model[n], shorter.model[n]) for n in shorter.model)
    written = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(written[n], shorter.model[n]) for n in shorter.model)
    (done,) = [e for e in read_lines(tmp_path / "run/events.jsonl") if e["event"] == "done"]
    assert (done["rounds"], done["stopped"]) == (8, 5)
    record = read_run(tmp_path / "run")
    assert (record.stopped, record.finished, record.result["round"]) == (5, True, 2)
    values = values_of(record, last=3)
    assert (values["best_round"], values["global/accuracy"]) == (2, pytest.approx(0.7))
    names = sorted(p.name[:11] for p in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["best-000002", "round-00000", "round-00000"]


def test_without_patience_all_rounds_are_done(scripted):
    result = run(FedAvg(), task(), rounds=7, evaluate=Evaluate(best="validation/accuracy"))
    assert (len(result.metrics), result.best) == (7, 2)


@pytest.mark.parametrize("first", range(1, 8))
@pytest.mark.parametrize("every", [1, 3])
def test_a_resumed_run_ends_and_chooses_as_if_it_had_never_been_away(scripted, tmp_path, first, every):
    """Checkpoints of the best round are kept, however far the run goes on."""
    options = {"evaluate": WAITING, "checkpoint_every": every}
    whole = run(FedAvg(), task(), rounds=8, out=tmp_path / "whole", **options)
    run(FedAvg(), task(), rounds=first, out=tmp_path / "run", **options)
    again = run(FedAvg(), task(), rounds=8, out=tmp_path / "run", resume=True, **options)
    assert again.best == whole.best == 2
    assert [m["round"] for m in again.metrics] == [m["round"] for m in whole.metrics]
    assert all(torch.equal(again.model[n], whole.model[n]) for n in whole.model)


def test_a_best_round_that_was_not_kept_in_time_is_kept_when_the_run_goes_on(scripted, tmp_path):
    """The process ended between the checkpoint of round 2 and its second name."""
    run(FedAvg(), task(), rounds=2, out=tmp_path, evaluate=WAITING)
    (kept,) = (tmp_path / "checkpoints").glob("best-*")
    kept.unlink()
    assert run(FedAvg(), task(), rounds=8, out=tmp_path, evaluate=WAITING, resume=True).best == 2
    assert (tmp_path / "checkpoints" / kept.name).exists()


@pytest.mark.parametrize(("spoil", "said"), [("cut", "cannot be used: .*is damaged"), ("remove", "is lost")])
def test_a_lost_best_round_is_said_before_any_round_is_done(scripted, tmp_path, spoil, said):
    """No round to come can make it good, so none is done; and what to do is said."""
    run(FedAvg(), task(), rounds=4, out=tmp_path, evaluate=WAITING)
    (kept,) = (tmp_path / "checkpoints").glob("best-*")
    content = kept.read_bytes()
    kept.write_bytes(content[:-1]) if spoil == "cut" else kept.unlink()
    lines = (tmp_path / "metrics.jsonl").read_bytes()
    told = f"the checkpoint of the best round, 2, {said}; put it back from a copy .* or begin the run anew"
    with pytest.raises(RunError, match=told):
        run(FedAvg(), task(), rounds=8, out=tmp_path, evaluate=WAITING, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == lines
    kept.write_bytes(content)
    assert run(FedAvg(), task(), rounds=8, out=tmp_path, evaluate=WAITING, resume=True).best == 2


def test_a_damaged_best_round_after_the_checkpoint_that_is_left_is_made_again(scripted, tmp_path):
    """Both names of the newest checkpoint are one file; the round before it does it again, and chooses it again."""
    run(FedAvg(), task(), rounds=2, out=tmp_path, evaluate=WAITING)
    for path in (tmp_path / "checkpoints").glob("*-000002-*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert run(FedAvg(), task(), rounds=8, out=tmp_path, evaluate=WAITING, resume=True).best == 2


def test_nobody_to_judge_is_no_wrong_setting(monkeypatch, tmp_path):
    """Where everybody fails there is no number of any name; the run goes on, and its patience ends as for NaN."""

    def judge(self, state, round):
        if round < 2:
            return {"validation/hr@10": 0.5}
        self._failed(Failure("0", "client_evaluate", "its values are not numbers"), round)
        return {}

    monkeypatch.setattr(running.Loop, "_judge", judge)
    watched = Evaluate(best="validation/hr@10", patience=3)
    result = run(FedAvg(), task(), rounds=9, out=tmp_path, evaluate=watched)
    assert (result.best, len(result.metrics)) == (1, 4)
    warned = [e for e in read_lines(tmp_path / "events.jsonl") if e["event"] == "warning"]
    assert [(e["round"], e["key"]) for e in warned] == [(3, "unjudged"), (4, "unjudged")]
    assert (
        "after round 3 nobody could be judged: client '0', 1 time in client_evaluate: its values" in warned[0]["text"]
    )
    again = run(FedAvg(), task(), rounds=9, out=tmp_path, evaluate=watched, resume=True)
    assert len(again.metrics) == 4


def test_the_best_state_has_the_clients_memory_of_its_round(tmp_path):
    """For users with tables of their own the server's model alone would recommend nothing."""
    method = FedRKG(interval=2, item_rate=40.0)
    watched = Evaluate(best="validation/mrr@20")
    result = run(method, small.task(), rounds=6, out=tmp_path, evaluate=watched)
    engine = LocalEngine(method, small.task())
    rounds, state = last_state(method, small.task(), tmp_path, 0, engine)
    assert rounds == result.best
    other = LocalEngine(method, small.task())
    shorter = run(method, small.task(), rounds=rounds, engine=other)
    assert state.version == shorter.state.version
    columns, expected = engine.memory()["columns"], other.memory()["columns"]
    assert all(torch.equal(columns[n], expected[n]) for n in expected)


def test_rows_on_disk_of_the_best_round_outlive_later_ones(scripted, tmp_path):
    """Six later rounds write new versions of each row; those of round 2 are still there and whole."""
    method = FedFIbOS(capacities={"0.5": 1.0})
    run(method, task(), rounds=7, out=tmp_path / "a", evaluate=Evaluate(best="validation/accuracy"))
    rounds, state = last_state(method, task(), tmp_path / "a", 0)
    run(method, task(), rounds=2, out=tmp_path / "b")
    _, expected = last_state(method, task(), tmp_path / "b", 0)
    assert rounds == 2
    stores = [next(iter(running.checkpoint.row_stores(s))) for s in (state, expected)]
    assert list(stores[0]) == list(stores[1]) != []
    assert all(torch.equal(stores[0].read(c), stores[1].read(c)) for c in stores[1])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"best": "ranking/hr@10"}, "not on the test .nearest valid: 'validation/hr@10'"),
        ({"patience": 3}, "patience = 3 needs best"),
        ({"best": "validation/accuracy", "patience": 0}, "at least 1"),
    ],
)
def test_bad_settings_are_one_line(keys, said):
    with pytest.raises(InputError, match=said):
        Evaluate(**keys)


def test_a_number_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"evaluate.best = 'validation/f1': there is no such number .*validation/acc"):
        run(FedAvg(), task(), rounds=1, evaluate=Evaluate(best="validation/f1"))
    with pytest.raises(InputError, match="the server holds no validation examples"):
        run(FedAvg(), tiny.small(), rounds=1, evaluate=Evaluate(best="validation/accuracy"))
