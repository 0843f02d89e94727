from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedfi.errors import InputError, OutputError
from fedfi.report import write_report
from fedfi.report.reading import read_run, read_runs, size, standing

ROUND = {
    "seconds": 0.5,
    "train/loss": 1.0,
    "global/accuracy": 0.5,
    "global/loss": 1.5,
    "levels/mean/accuracy": 0.4,
    "levels/1/accuracy": 0.5,
    "levels/0.25/accuracy": 0.3,
    "local/accuracy_mean": 0.45,
    "jaccard/0.25": 0.2,
    "cv_fisher": 7.0,
    "keep/0.25/a.weight": 0.1,
    "keep/0.25/b.weight": 0.9,
    "keep_lowest/0.25": 0.1,
    "bytes/up": 2_000_000,
    "bytes/down": 1_000_000,
}


def a_run(path: Path, name: str = "fedfibos", accuracy: float = 0.5, done: bool = True, rounds: int = 2) -> Path:
    """A run directory as a run of two rounds (or one) leaves it."""
    path.mkdir(parents=True)
    (path / "run.toml").write_text(f'rounds = 2\nseed = 0\n[data]\nname = "toy"\n[algorithm]\nname = "{name}"\n')
    (path / "env.json").write_text(json.dumps({"python": "3.11", "packages": {"torch": "2.6"}}))
    part = {"size": 3, "class_counts": [1, 2], "hash": "x", "indices": [0, 1, 2]}
    clients = {str(i): {"train": part, "test": part} for i in range(2)}
    (path / "split.json").write_text(json.dumps({"name": "toy", "clients": clients}))
    lines = [{"round": r, **ROUND, "global/accuracy": accuracy} for r in range(1, rounds + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    events: list[dict[str, object]] = [
        {"event": "failure", "round": 2, "client": "1", "stage": "client_update", "error": "old <b>"},
        {"event": "resume", "round": 2},
        {"event": "failure", "round": 2, "client": "0", "stage": "client_update", "error": "bad <i>"},
        {"event": "warning", "round": 2, "key": "empty/0.25/a", "text": "nothing kept"},
        {"event": "evaluated", "round": 2, "client": "0", "metrics": {"accuracy": 0.25, "examples": 4}},
    ]
    if done:
        events.append({"event": "done", "rounds": 2})
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return path


def figures_of(page: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_page_has_all_parts(tmp_path: Path) -> None:
    out = write_report([a_run(tmp_path / "run")], tmp_path / "page.html")
    page = out.read_text()
    for part in (
        "<b>fedfibos</b> reached <b>50.00%</b> test accuracy on toy with 2 clients, after 2 rounds.",
        "<h2>Result</h2>",
        "<h2>Learning</h2>",
        "<h2>Submodels</h2>",
        "<h2>Clients</h2>",
        "<h2>Traffic and time</h2>",
        "<h2>Failures and warnings</h2>",
        "<h2>Settings and environment</h2>",
        "prefers-color-scheme: dark",
        "bad &lt;i&gt;",
        "nothing kept",
        "4.0 MB",
        "name = &quot;toy&quot;",
    ):
        assert part in page, part
    assert "old &lt;b&gt;" not in page, "a failure of a round that was done again does not count"
    titles = [figure["layout"]["title"]["text"] for figure in figures_of(page)]
    assert titles[0] == "Global model: accuracy"
    for part in ("Jaccard", "variation", "Kept part", "by level", "client and label", "MB a round", "own test"):
        assert any(part in title for title in titles), part


def test_figures_are_what_plotly_takes(tmp_path: Path) -> None:
    from plotly import graph_objects

    page = write_report([a_run(tmp_path / "run")], tmp_path / "page.html").read_text()
    for figure in figures_of(page):
        graph_objects.Figure(figure)


def test_page_loads_nothing(tmp_path: Path) -> None:
    page = write_report([a_run(tmp_path / "run")], tmp_path / "page.html").read_text()
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.split("<script>")[0] + page[-20_000:]):
        assert "http" not in tag
        assert "src=" not in tag
    assert "@import" not in page.split("</style>")[0]
    assert "url(" not in page.split("</style>")[0]


def test_a_comparison_is_one_page(tmp_path: Path) -> None:
    for name, accuracy in (("fedavg", 0.6), ("fedfibos", 0.7)):
        for seed in (0, 1):
            a_run(tmp_path / "c" / name / f"seed-{seed}", name, accuracy, done=seed == 0)
    assert [run.label for run in read_runs([tmp_path / "c"])] == ["fedavg", "fedavg", "fedfibos", "fedfibos"]
    page = write_report([tmp_path / "c"], tmp_path / "page.html").read_text()
    assert "<b>fedfibos</b> reached <b>70.00%</b> test accuracy, the best of 2" in page
    assert "2 of 4 runs are not finished" in page


def test_runs_of_one_method_are_told_apart(tmp_path: Path) -> None:
    paths = [a_run(tmp_path / "one"), a_run(tmp_path / "two")]
    assert [run.label for run in read_runs(paths)] == ["one", "two"]


def test_not_finite_numbers_are_gaps(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"round": 1, "seconds": 1, "global/loss": NaN, "global/accuracy": 0.1}\n')
    page = write_report([run], tmp_path / "page.html").read_text()
    assert any(figure["data"][0]["y"] == [None] for figure in figures_of(page))


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", done=False)
    (run / "metrics.jsonl").unlink()
    (run / "events.jsonl").unlink()
    page = write_report([run], tmp_path / "page.html").read_text()
    assert "Nothing has been judged yet" in page
    assert read_run(run).rounds == 0


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run directory"):
        write_report([tmp_path], tmp_path / "page.html")
    run = a_run(tmp_path / "run")
    with pytest.raises(OutputError, match=r"page\.html: cannot be written"):
        write_report([run], run / "run.toml" / "page.html")
    assert write_report([run], tmp_path / "new" / "page.html").exists()


def test_one_round_of_two_named_classes(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", rounds=1)
    split = json.loads((run / "split.json").read_text())
    (run / "split.json").write_text(json.dumps(split | {"labels": ["well", "ill"]}))
    page = write_report([run], tmp_path / "page.html").read_text()
    assert "after 1 round." in page
    figures = {figure["layout"]["title"]["text"]: figure for figure in figures_of(page)}
    for title, figure in figures.items():
        assert f"<figcaption>{title}</figcaption>" in page
        if "ccuracy" in title and "traffic" not in title:
            assert figure["layout"]["yaxis"]["autorangeoptions"] == {"minallowed": 0, "maxallowed": 1}
    assert figures["Training examples by client and label"]["data"][0]["y"] == ["well", "ill"]


def test_standing_by_hand() -> None:
    """Rounds 1 to 3, resumed from round 2: 2 and 3 of the first time are void, and so is the first end."""
    events = [{"event": "sent", "round": r} for r in (1, 2, 3)]
    events += [{"event": "done", "rounds": 3}, {"event": "resume", "round": 2}, {"event": "sent", "round": 2}]
    assert [(e["event"], e.get("round")) for e in standing(events)] == [("sent", 1), ("resume", 2), ("sent", 2)]


def test_size() -> None:
    assert [size(n) for n in (0, 999, 1000, 1_234_567, 5e12)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB"]
