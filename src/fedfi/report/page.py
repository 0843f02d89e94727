"""The page: what came of it first, then why, then on what."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from fedfi.federation.checkpoint import write_output
from fedfi.federation.divergence import short
from fedfi.federation.record import finite
from fedfi.report import figures as fig
from fedfi.report import plotly
from fedfi.report.reading import RunRecord, percent, read_runs, rounds_of, size

_SHOWN = 50
_SCORE, _RANKING = ("global/accuracy", "test accuracy"), ("ranking/hr@10", "hit rate at 10 (full ranking)")
_COLUMNS = {
    "global/accuracy": "global accuracy",
    "global/loss": "global loss",
    "levels/mean/accuracy": "mean of levels",
    "local/accuracy_mean": "local accuracy",
    "local/accuracy_worst": "worst client",
    "ranking/hr@10": "HR@10",
    "ranking/ndcg@10": "NDCG@10",
    "ranking/mrr@10": "MRR@10",
}


def write(directories: Sequence[Path], out: Path) -> Path:
    """Writes the page; see `fedfi.report.write_report`."""
    script = plotly.script()
    runs = read_runs(directories)
    page = render(runs, script)
    write_output(out, page.encode())
    return out


def render(runs: Sequence[RunRecord], script: str, *, live: bool = False) -> str:
    """The page as text.

    Args:
        runs: What it is about.
        script: Plotly's JavaScript.
        live: Whether the page asks its server for news.
    """
    figures: list[fig.Figure] = []
    firsts = list({run.label: run for run in reversed(runs)}.values())[::-1]
    sections = [
        _section("Result", _verdict(runs) + _results(runs)),
        _section("Learning", _place(figures, _learning(runs))),
    ]
    for run in firsts:
        name = f": {run.label}" if len(firsts) > 1 else ""
        sections.append(_section(f"Submodels{name}", _place(figures, _submodels(run))))
    sections += [
        _section("Clients", _place(figures, fig.present([fig.client_accuracies(firsts), fig.labels(firsts[0])]))),
        _section("Traffic", _place(figures, fig.present(_traffic(runs, firsts)))),
        _section("Failures and warnings", _events(runs)),
        _section("Settings and environment", "".join(_settings(run) for run in runs)),
    ]
    return shell(", ".join(dict.fromkeys(run.label for run in runs)), "".join(sections), figures, script, live=live)


def shell(title: str, content: str, figures: Sequence[fig.Figure], script: str, *, live: bool = False) -> str:
    """A whole page around its content.

    Args:
        title: Plain text.
        content: HTML.
        figures: Those that the content has places for.
        script: Plotly's JavaScript.
        live: Whether the page asks its server for news.
    """
    data = json.dumps(finite(figures), allow_nan=False).replace("</", "<\\/")
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    behaviour = resources.files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>fedfi: {escape(title)}</title><style>{style}</style></head><body{' data-live' * live}>"
        f"<main><h1>{escape(title)}</h1>{content}</main><script>{script}</script>"
        f'<script type="application/json" id="figures">{data}</script><script>{behaviour}</script>'
        "</body></html>\n"
    )


def _verdict(runs: Sequence[RunRecord]) -> str:
    run = runs[0]
    config = run.config
    data = escape(str(config.get("data", {}).get("name", run.split.get("name", "the data"))))
    count = len(run.split.get("clients", {}))
    setting = f"on {data}" + (f" with {count} clients" if count else "")
    scores: dict[str, list[float]] = {}
    key, what = _SCORE if any("global/accuracy" in r.result for r in runs) else _RANKING
    for r in runs:
        if key in r.result:
            scores.setdefault(r.label, []).append(r.result[key])
    open_ = [r for r in runs if not r.finished]
    note = f" {len(open_)} of {len(runs)} runs are not finished." if open_ else ""
    if not scores:
        return f"<p class=verdict>Nothing has been judged yet {setting}.{note}</p>"
    best = max(scores, key=lambda label: (not math.isnan(m := statistics.fmean(scores[label])), m))
    mean = statistics.fmean(scores[best])
    value = percent(mean) if key == _SCORE[0] else f"{mean:.4f}"
    reached = f"<b>{escape(best)}</b> reached <b>{value}</b> {what}"
    if len(scores) > 1:
        reached += f", the best of {len(scores)}"
    return f"<p class=verdict>{reached} {setting}, after {rounds_of(run.rounds)}.{note}</p>"


def _results(runs: Sequence[RunRecord]) -> str:
    columns = [c for c in _COLUMNS if any(c in run.result for run in runs)]
    heads = ["run", "rounds", *(_COLUMNS[c] for c in columns), "up", "down", "failures", "time"]
    rows = []
    for run in runs:
        planned = run.config.get("rounds", run.rounds)
        name = run.label if "seed" not in run.config else f"{run.label}, seed {run.config['seed']}"
        values = [_cell(key, run.result[key]) if key in run.result else "" for key in columns]
        failures = len(run.of_kind("failure"))
        rounds = str(run.rounds) if run.finished else f"{run.rounds} of {planned}"
        rounds += f" (best: {run.result['round']})" if run.chosen_by and run.result else ""
        up, down = size(run.total("bytes/up")), size(run.total("bytes/down"))
        rows.append([name, rounds, *values, up, down, str(failures), f"{run.total('seconds'):.1f}\N{NO-BREAK SPACE}s"])
    return _table(heads, rows)


def _cell(key: str, value: float) -> str:
    return percent(value) if "accuracy" in key else short(value)


def _learning(runs: Sequence[RunRecord]) -> list[fig.Figure]:
    made = []
    for metric in ("accuracy", "loss"):
        for key, name in (
            (f"global/{metric}", "Global model"),
            (f"levels/mean/{metric}", "Mean of the levels"),
            (f"local/{metric}_mean", "Clients, own test examples, mean over clients"),
            (f"validation/{metric}", "Global model, validation"),
        ):
            made.append(fig.curve(runs, key, f"{name}: {metric}"))
    for key, name in (("hr", "hit rate"), ("ndcg", "NDCG")):
        made.append(fig.curve(runs, f"ranking/{key}@10", f"Full ranking: {name} at 10"))
        made.append(fig.curve(runs, f"validation/{key}@10", f"Full ranking, validation items: {name} at 10"))
    made.append(fig.curve(runs, "train/loss", "Training loss"))
    return fig.present(made)


def _submodels(run: RunRecord) -> list[fig.Figure]:
    return fig.present(
        [
            fig.family(run, r"levels/(?!mean)([^/]+)/accuracy", "Accuracy by level", percent=True),
            fig.family(run, r"levels/(?!mean)([^/]+)/loss", "Loss by level"),
            fig.family(run, r"jaccard/(.+)", "Overlap with the largest weights (Jaccard), by level"),
            fig.family(run, r"(cv_fisher|cv_magnitude)", "Coefficient of variation", log=True),
            fig.keep_rates(run),
            fig.family(run, r"keep_lowest/(.+)", "Lowest kept part of any layer, by level", percent=True),
        ]
    )


def _traffic(runs: Sequence[RunRecord], firsts: Sequence[RunRecord]) -> list[fig.Figure | None]:
    bars = [fig.traffic(run) for run in firsts]
    if len(firsts) > 1:
        for run, bar in zip(firsts, bars, strict=True):
            if bar:
                bar["layout"]["title"]["text"] += f": {run.label}"
    return [
        fig.by_traffic(runs, "global/accuracy", "Accuracy by traffic"),
        fig.by_traffic(runs, "ranking/hr@10", "Hit rate at 10 by traffic"),
        *bars,
    ]


def _events(runs: Sequence[RunRecord]) -> str:
    rows = []
    for run in runs:
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
        return "<p>None.</p>"
    more = f"<p>and {len(rows) - _SHOWN} more in events.jsonl</p>" if len(rows) > _SHOWN else ""
    return _table(["run", "round", "kind", "what"], rows[:_SHOWN]) + more


def _settings(run: RunRecord) -> str:
    config = escape(tomli_w.dumps(dict(run.config)))
    environment = _flat(run.environment)
    return (
        f"<details><summary>{escape(run.label)} <small>{escape(str(run.path))}</small></summary>"
        f"<pre>{config}</pre>{_table(['environment', ''], environment)}</details>"
    )


def _flat(table: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for key, value in table.items():
        rows += _flat(value) if isinstance(value, Mapping) else [[str(key), str(value)]]
    return rows


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _place(figures: list[fig.Figure], made: Sequence[fig.Figure]) -> str:
    """Room for figures, which the page's script fills."""
    places = []
    for figure in made:
        title = escape(figure["layout"]["title"]["text"])
        places.append(
            f'<figure class=figure><figcaption>{title}</figcaption><div data-figure="{len(figures)}"></div></figure>'
        )
        figures.append(figure)
    return f"<div class=grid>{''.join(places)}</div>" if places else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
