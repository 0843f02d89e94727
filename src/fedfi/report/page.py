"""The page: what came of it first, then why, then on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import tomli_w

from fedfi.federation.checkpoint import write_output
from fedfi.report import clients, plotly
from fedfi.report import figures as fig
from fedfi.report.cost import costs
from fedfi.report.curves import curve
from fedfi.report.html import Page, code, details, paragraph, pictures, table
from fedfi.report.reading import RunRecord, read_runs
from fedfi.report.summary import results, verdict
from fedfi.report.view import Part
from fedfi.report.views import VIEWS, other

_SHOWN = 50


def write(directories: Sequence[Path], out: Path) -> Path:
    """Writes the page; see `fedfi.report.write_report`."""
    script = plotly.script()
    runs = read_runs(directories)
    write_output(out, render(runs, script).encode())
    return out


def render(runs: Sequence[RunRecord], script: str, *, live: bool = False) -> str:
    """The page as text.

    Args:
        runs: What it is about.
        script: Plotly's JavaScript.
        live: Whether the page asks its server for news.
    """
    page = Page(live=live)
    firsts = list({run.label: run for run in reversed(runs)}.values())[::-1]
    page.section("Result", verdict(runs) + results(runs))
    page.section("Learning", page.place(_learning(runs)))
    last = []
    for run in firsts:
        name = f": {run.label}" if len(firsts) > 1 else ""
        parts = [view(run) for view in VIEWS]
        for part in parts:
            page.section(part.title + name, _part(page, part))
        last.append((name, other(run, [part.keys for part in parts if not part.empty])))
    page.section("Clients", _clients(page, firsts))
    page.section("Traffic and time", page.place(costs(runs)))
    for name, part in last:
        page.section(part.title + name, _part(page, part))
    page.section("Failures and warnings", _events(runs))
    page.section("Settings and environment", "".join(_settings(run) for run in runs))
    return page.text(", ".join(dict.fromkeys(run.label for run in runs)), script)


def message(text: str, script: str, *, live: bool = False) -> str:
    """A page that has nothing to show but a message, as text."""
    page = Page(live=live)
    page.section("Waiting", f"<p class=verdict>{escape(text)}</p>")
    return page.text("waiting", script)


def _part(page: Page, part: Part) -> str:
    if part.empty:
        return ""
    rows = table(part.head, part.rows, part.title) if part.rows else ""
    return paragraph(part.text) + rows + pictures(part.pictures) + page.place(part.figures)


def _learning(runs: Sequence[RunRecord]) -> list[fig.Figure]:
    made = []
    for metric in ("accuracy", "loss"):
        for key, name in (
            (f"global/{metric}", "Global model"),
            (f"levels/mean/{metric}", "Mean of the levels"),
            (f"local/{metric}_mean", "Clients, own test examples, mean over clients"),
            (f"validation/{metric}", "Global model, validation"),
        ):
            made.append(curve(runs, key, f"{name}: {metric}"))
    for key, name in (("hr", "hit rate"), ("ndcg", "NDCG")):
        made.append(curve(runs, f"ranking/{key}@10", f"Full ranking: {name} at 10"))
        made.append(curve(runs, f"validation/{key}@10", f"Full ranking, validation items: {name} at 10"))
    made.append(curve(runs, "train/loss", "Training loss"))
    return fig.present(made)


def _clients(page: Page, firsts: Sequence[RunRecord]) -> str:
    head, rows = clients.extremes_table(firsts)
    spread = table(head, rows, "Worst, median and best client") if rows else ""
    over_rounds = clients.extremes(firsts[0]) if len(firsts) == 1 else None
    holds = [clients.labels(firsts[0]), clients.sizes(firsts[0])]
    return spread + page.place(fig.present([clients.client_accuracies(firsts), over_rounds, *holds]))


def _events(runs: Sequence[RunRecord]) -> str:
    rows = []
    for run in runs:
        told = {event.get("text") for event in run.of_kind("warning")}
        rows += [[run.label, "", "split", text] for text in run.split.get("warnings", ()) if text not in told]
        for event in run.events:
            if event["event"] == "failure":
                what = f"client {event['client']}, {event['stage']}: {event['error']}"
            elif event["event"] == "warning":
                what = event["text"]
            elif event["event"] == "resume":
                what = "resumed"
            else:
                continue
            rows.append([run.label, str(event.get("round", "")), event["event"], what])
    if not rows:
        return paragraph("None.")
    more = paragraph(f"and {len(rows) - _SHOWN} more in events.jsonl") if len(rows) > _SHOWN else ""
    return table(["run", "round", "kind", "what"], rows[:_SHOWN], "Failures and warnings") + more


def _settings(run: RunRecord) -> str:
    content = code(tomli_w.dumps(dict(run.config)), f"Settings of {run.label}")
    environment = table(["environment", ""], _flat(run.environment), f"Environment of {run.label}")
    return details(run.label, str(run.path), content + environment)


def _flat(content: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for key, value in content.items():
        rows += _flat(value) if isinstance(value, Mapping) else [[str(key), str(value)]]
    return rows
