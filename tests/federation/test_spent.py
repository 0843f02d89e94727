"""What a run has spent is that of all its rounds, whichever is the best and whichever was judged."""

from __future__ import annotations

import math

import pytest
from tests.recsys import small

from fedfi.cli.results import print_result
from fedfi.cli.summary import markdown, summarise, values_of
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.loop import Loop
from fedfi.federation.run import run
from fedfi.federation.spent import privacy, spent
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.privacy import epsilon
from fedfi.report.page import render
from fedfi.report.reading import read_run


@pytest.mark.parametrize(
    ("evaluate", "rounds", "interval", "releases"),
    [
        (Evaluate(), 7, 2, 3),  # the last judged round is no exchange
        (Evaluate(every=2), 5, 3, 1),  # no judged round is one
        (Evaluate(best="validation/mrr@10"), 6, 1, 6),  # tables are sent after the best round, too
    ],
)
def test_privacy_is_that_of_all_rounds(tmp_path, monkeypatch, capsys, evaluate, rounds, interval, releases):
    if evaluate.best:
        names = [f"{part}/{key}" for part in ("ranking", "validation") for key in ("hr@10", "ndcg@10", "mrr@10")]
        monkeypatch.setattr(Loop, "_judge", lambda self, state, round: dict.fromkeys(names, 1 / (1 + round)))
    method = FedRKG(interval=interval, clip=1.0, noise=4.0)
    result = run(method, small.task(), rounds=rounds, evaluate=evaluate, out=tmp_path / "run")
    if evaluate.best:
        assert result.best == 1
    record, expected = read_run(tmp_path / "run"), epsilon(4.0, releases, 1e-5)
    assert record.spent["privacy/epsilon"] == pytest.approx(expected)
    assert not any(key.startswith("privacy/") for key in record.result)
    print_result(tmp_path / "run")
    assert f"privacy of a client: epsilon {expected:.3f}, delta 1e-05" in capsys.readouterr().out
    values = values_of(record, last=2)
    assert values["privacy/epsilon"] == pytest.approx(expected)
    assert f"{expected:.4f}" in markdown({"fedrkg": summarise([values])}, {"fedrkg": 1})
    page = render([record], "")
    assert ">epsilon<" in page
    assert f"{expected:.4f}" in page


def test_without_noise_there_is_no_privacy(tmp_path, capsys):
    """Infinity is no number of JSON, and is read as what it was."""
    run(FedRKG(interval=1, clip=1.0, noise=0.0), small.task(), rounds=2, out=tmp_path / "run")
    assert read_run(tmp_path / "run").spent["privacy/epsilon"] == math.inf
    print_result(tmp_path / "run")
    assert "privacy of a client: none: there is no noise" in capsys.readouterr().out


def test_the_newest_value_counts_and_nothing_promised_is_nothing():
    lines = [{"round": 1, "privacy/epsilon": 1.0}, {"round": 2, "privacy/epsilon": 2.0}, {"round": 3, "loss": 1.0}]
    assert spent(lines) == {"privacy/epsilon": 2.0}
    assert privacy(spent([{"round": 1}])) is None
