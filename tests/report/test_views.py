from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.report.made import CLIENTS, LAYERS, everything

from fedfi.errors import InputError
from fedfi.federation.exhibits import FOLDER
from fedfi.federation.packet import Packet
from fedfi.report import write_report
from fedfi.report.clients import extremes_table, sizes
from fedfi.report.curves import by_traffic, curve
from fedfi.report.embedding import embedded
from fedfi.report.figures import COLOURS, DARK
from fedfi.report.html import table
from fedfi.report.reading import RunRecord, read_run
from fedfi.report.summary import results, verdict
from fedfi.report.views import VIEWS, other
from fedfi.report.views.encryption import messages
from fedfi.report.views.guidance import around
from fedfi.report.views.submodels import masking_error

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(everything(tmp_path_factory.mktemp("run") / "full"))


def record(path: Path, label: str, lines: list[dict[str, float]], **more: object) -> RunRecord:
    return RunRecord(path, label, {"rounds": len(lines)}, lines, [], dict(more), {})


def titles(run: RunRecord) -> dict[str, list[str]]:
    return {
        part.title: [figure["layout"]["title"]["text"] for figure in part.figures]
        for view in VIEWS
        if not (part := view(run)).empty
    }


def test_each_view_shows_what_it_is_about(full: RunRecord) -> None:
    found = titles(full)
    assert list(found) == ["Submodels", "Merging", "Shared and encrypted packets", "Guidance", "Audit"]
    assert found["Submodels"] == [
        "Accuracy by level",
        "Loss by level",
        "Kept part of each layer, by level",
        "Kept part of each layer at level 0.0625",
        "Lowest kept part of any layer, by level",
        "Overlap with the largest weights (Jaccard), by level",
        "Coefficient of variation",
        "Masking error, relative to magnitude's masks",
    ]
    assert found["Merging"] == [
        "Objective of each layer",
        "Objective of the full model",
        "Permuted units of each layer",
        f"Alignment matrix of {LAYERS[0]}",
        f"Alignment matrix of {LAYERS[1]}",
        "Distance of each party from the merged model",
    ]
    assert found["Shared and encrypted packets"] == [
        "Votes of each packet",
        "Packets a round",
        "MB up in messages, by round",
        "Ciphertexts a round",
    ]
    assert found["Guidance"] == [
        "Hit rate at 10, and guidance",
        "Hit rate around guidance",
        "Items of a user before guidance",
        "Items of a user after guidance",
        "Distribution of gates",
    ]


def test_a_run_that_recorded_nothing_of_a_family_has_none_of_its_views(tmp_path: Path) -> None:
    assert titles(record(tmp_path, "plain", [{"round": 1, "seconds": 1.0, "global/accuracy": 0.5}])) == {}


def test_what_no_view_shows_is_shown_all_the_same(full: RunRecord) -> None:
    part = other(full, [view(full).keys for view in VIEWS])
    assert [f["layout"]["title"]["text"] for f in part.figures] == ["my", "alone"]
    assert [t["name"] for t in part.figures[0]["data"]] == ["my/other", "my/own number"]


def test_the_page_holds_every_view_and_plotly_takes_every_figure(full: RunRecord, tmp_path: Path) -> None:
    from plotly import graph_objects

    page = write_report([full.path], tmp_path / "page.html").read_text()
    for heading in (*titles(full), "Other numbers", "Traffic and time", "Clients"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count('<img alt="reconstructed"') == 3
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    figures = json.loads(found[1])
    assert len(figures) == page.count('data-as="csv"') > 30
    for figure in figures:
        graph_objects.Figure(figure)


def test_bands_span_the_seeds(tmp_path: Path) -> None:
    """Seeds 0.2 and 0.4 in round 1, 0.5 and 0.9 in round 2: the mean is 0.3, then 0.7."""
    runs = [
        record(tmp_path, "a", [{"round": i + 1, "seconds": 1.0, "global/accuracy": v} for i, v in enumerate(values)])
        for values in ((0.2, 0.9), (0.4, 0.5))
    ]
    made = curve(runs, "global/accuracy", "t")
    assert made
    high, low, mean = made["data"]
    assert (high["y"], low["y"]) == ([0.4, 0.9], [0.2, 0.5])
    assert low["fill"] == "tonexty"
    assert mean["y"] == pytest.approx([0.3, 0.7])
    assert not made["layout"]["showlegend"]
    assert "lowest to the highest" in made["layout"]["meta"]["note"]


def test_one_seed_has_no_band_and_traffic_is_what_was_sent_so_far(tmp_path: Path) -> None:
    lines = [{"round": r, "seconds": 1.0, "global/loss": 1.0, "bytes/up": 2000, "bytes/down": 1000} for r in (1, 2)]
    made = by_traffic([record(tmp_path, "a", lines)], "global/loss", "t")
    assert made
    (only,) = made["data"]
    assert only["x"] == [3.0, 6.0]
    assert made["layout"]["xaxis"]["title"]["text"] == "kB sent, up and down"


def test_worst_median_best_by_name(full: RunRecord) -> None:
    """Client i of 12 has (i + 1) / 13 in the last round: 1/13, the mean of 6/13 and 7/13, and 12/13."""
    _, rows = extremes_table([full])
    assert rows == [["fedfibos", "12", f"7.69% (client {CLIENTS[0]})", "50.00%", f"92.31% (client {CLIENTS[-1]})"]]


def test_hit_rate_around_guidance_by_hand(tmp_path: Path) -> None:
    """Guidance in rounds 2 and 4 of five; hit rates 0.1 to 0.5: at offset 0 the mean of 0.2 and 0.4."""
    lines = [{"round": r, "seconds": 1.0, "ranking/hr@10": r / 10} for r in range(1, 6)]
    for line in (lines[1], lines[3]):
        line["means/taken"] = 3.0
    made = around(record(tmp_path, "a", lines))
    assert made
    (trace,) = made["data"]
    expected = {-3: 0.1, -2: 0.2, -1: 0.2, 0: 0.3, 1: 0.4, 2: 0.4, 3: 0.5}
    assert dict(zip(trace["x"], trace["y"], strict=True)) == pytest.approx(expected)


def test_bytes_in_messages_by_hand(full: RunRecord) -> None:
    """Six clients a round with messages of 100 kB, of 1.5 MB up."""
    made = messages(full)
    assert made
    assert [trace["y"][0] for trace in made["data"]] == pytest.approx([0.6, 0.9])


def test_masking_error_is_relative(tmp_path: Path) -> None:
    lines = [{"round": 1, "seconds": 1.0, "masking_error/0.5": 1.0, "masking_error_magnitude/0.5": 4.0}]
    made = masking_error(record(tmp_path, "a", lines))
    assert made
    assert made["data"][0]["y"] == [0.25]


def test_sizes_of_many_clients_are_counted(tmp_path: Path) -> None:
    clients = {str(i): {"train": {"size": 1 + i % 2}} for i in range(100)}
    made = sizes(record(tmp_path, "a", [], clients=clients | {"far": "elsewhere"}, kind="ratings"))
    assert made
    assert (made["data"][0]["x"], made["data"][0]["y"]) == ([1, 2], [50, 50])


def test_a_verdict_on_what_most_methods_report(tmp_path: Path) -> None:
    """Two methods without a global model and one with: the clients' mean decides."""
    runs = [
        record(tmp_path, name, [{"round": 1, "seconds": 1.0, "local/accuracy_mean": value}])
        for name, value in (("a", 0.7), ("b", 0.8))
    ]
    both = {"round": 1, "seconds": 1.0, "global/accuracy": 0.9, "local/accuracy_mean": 0.6}
    runs.append(record(tmp_path, "c", [both]))
    text = verdict(runs)
    assert "<b>b</b> reached <b>80.00%</b> mean accuracy of the clients" in text
    assert "the first of 3 (one seed)" in text
    assert "a, 70.00%" in text


def judged_as(folder: Path, **accuracies: list[float]) -> str:
    """The verdict on some methods, by their accuracies, one a seed."""
    lines = {
        name: [{"round": 1, "seconds": 1.0, "global/accuracy": v} for v in values]
        for name, values in accuracies.items()
    }
    return verdict(
        [record(folder / str(i), name, [line]) for name, many in lines.items() for i, line in enumerate(many)]
    )


def test_a_verdict_is_no_larger_than_what_was_seen(tmp_path: Path) -> None:
    assert "level with a" in judged_as(tmp_path / "1", a=[0.7], b=[0.70000001])
    assert "the best of 2" in judged_as(tmp_path / "2", a=[0.6, 0.62], b=[0.7, 0.71])
    assert "the first of 2; seeds differ by more" in judged_as(tmp_path / "3", a=[0.6, 0.8], b=[0.72, 0.73])


def test_runs_on_different_data_are_not_ranked(tmp_path: Path) -> None:
    line = {"round": 1, "seconds": 1.0, "global/accuracy": 0.5}
    one, two = (record(tmp_path, name, [line]) for name in ("a", "b"))
    digits, shapes = ({**run.config, "data": {"name": name}} for run, name in ((one, "digits"), (two, "shapes")))
    text = verdict([replace(one, config=digits), replace(two, config=shapes)])
    assert "These runs are not compared: data.name is &quot;digits&quot; and &quot;shapes&quot;." in text
    assert "best" not in text
    assert "reached" in verdict([replace(one, config=digits), replace(two, config=digits)])


def test_the_least_loss_is_the_best(tmp_path: Path) -> None:
    runs = [
        record(tmp_path, name, [{"round": 1, "seconds": 1.0, "global/loss": value}])
        for name, value in (("a", 0.7), ("b", 0.8), ("c", float("nan")))
    ]
    assert "<b>a</b> reached <b>0.7000</b> test loss" in verdict(runs)


def test_a_table_of_methods_has_mean_and_deviation(tmp_path: Path) -> None:
    """0.4 and 0.6: mean 0.5, sample deviation 0.1414."""
    runs = [record(tmp_path, "a", [{"round": 1, "seconds": 1.0, "global/accuracy": v}]) for v in (0.4, 0.6)]
    text = results(runs)
    assert "<td>50.00% ± 14.14%</td>" in text
    assert "All 2 runs" in text


def test_items_are_laid_out_the_same_each_time() -> None:
    rows = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    first = embedded(rows, rows + 1)
    assert first.shape == (24, 2)
    assert torch.equal(first, embedded(rows, rows + 1))
    assert bool(torch.isfinite(embedded(torch.zeros(5, 2))).all())
    with pytest.raises(ValueError, match="3 rows"):
        embedded(torch.zeros(3, 2))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = everything(tmp_path / "run")
    (path / FOLDER / "votes.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"votes\.safetensors: cannot be read"):
        write_report([path], tmp_path / "page.html")
    (path / FOLDER / "votes.safetensors").unlink()
    (path / "audit" / "audit.json").write_text('{"no": "list"}')
    with pytest.raises(InputError, match=r"audit\.json: is not what"):
        write_report([path], tmp_path / "page.html")


def test_pictures_are_pictures(tmp_path: Path) -> None:
    path = everything(tmp_path / "run")
    pairs = json.loads((path / "audit" / "pictures.json").read_text())
    pairs[0]["original"] = "https://example.org/a.png"
    (path / "audit" / "pictures.json").write_text(json.dumps(pairs))
    page = write_report([path], tmp_path / "page.html").read_text()
    assert page.count('<img alt="reconstructed"') == 2
    assert "example.org/a.png" not in page


def test_a_table_of_what_a_user_wrote_is_text() -> None:
    assert "<td>&lt;b&gt;</td>" in table(["a"], [["<b>"]], "x")
    assert 'aria-label="&quot;x&quot;"' in table([], [], '"x"')


def test_an_exhibit_of_another_version_that_lacks_a_table_is_bad_input(tmp_path: Path) -> None:
    path = everything(tmp_path / "run")
    (path / FOLDER / "votes.safetensors").write_bytes(Packet({}, {"round": 1}).encode())
    with pytest.raises(InputError, match="as 'votes' lacks 'votes'"):
        write_report([path], tmp_path / "page.html")


def test_colours_are_told_from_both_cards() -> None:
    """By the contrast that WCAG 2.2 asks of graphics, 3 to 1; cards are #f7f8fa and #1c222c."""
    for colours, card in ((COLOURS, "#f7f8fa"), (DARK, "#1c222c")):
        for colour in colours:
            assert contrast(colour, card) >= 3, (colour, card)
    assert len(set(COLOURS)) == len(set(DARK)) == len(COLOURS) == len(DARK)


def contrast(one: str, other: str) -> float:
    """Of two colours #rrggbb, as WCAG 2.2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
