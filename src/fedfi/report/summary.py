"""What came of runs in a sentence, a few facts and a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedfi.federation.divergence import deviation, short
from fedfi.report.html import details, table
from fedfi.report.reading import RunRecord, percent, rounds_of, size
from fedfi.validation import shown


@dataclass(frozen=True)
class Score:
    """A number by which runs are compared; the larger the better, but for a loss.

    Attributes:
        key: In `metrics.jsonl`.
        what: What it is called in a sentence.
    """

    key: str
    what: str

    def shown(self, value: float) -> str:
        """As a page writes it."""
        return percent(value) if "accuracy" in self.key else f"{value:.4f}"

    def rank(self, value: float) -> tuple[bool, float]:
        """The larger, the better; a value that is no number is the worst."""
        return (not math.isnan(value), -value if "loss" in self.key else value)


_SCORES = (
    Score("global/accuracy", "test accuracy"),
    Score("ranking/hr@10", "hit rate at 10 (full ranking)"),
    Score("local/accuracy_mean", "mean accuracy of the clients on their own test examples"),
    Score("global/loss", "test loss"),
    Score("local/loss_mean", "mean loss of the clients on their own test examples"),
)
_COLUMNS = {
    "global/accuracy": "global accuracy",
    "global/loss": "global loss",
    "levels/mean/accuracy": "mean of levels",
    "local/accuracy_mean": "local accuracy",
    "local/accuracy_worst": "worst client",
    "ranking/hr@10": "HR@10",
    "ranking/ndcg@10": "NDCG@10",
    "ranking/mrr@10": "MRR@10",
    "privacy/epsilon": "epsilon",
}


def verdict(runs: Sequence[RunRecord]) -> str:
    """A sentence, then what it cost; of runs on different data the sentence says in what they differ, and no more."""
    setting = _setting(runs[0])
    open_ = [r for r in runs if not r.finished]
    note = f" {len(open_)} of {len(runs)} runs are not finished." if open_ else ""
    lengths = sorted({r.rounds for r in runs if r.finished})
    if len(lengths) > 1:
        note += f" They are of {lengths[0]} to {lengths[-1]} rounds."
    if apart := _apart(runs):
        return f"<p class=verdict>These runs are not compared: {escape(apart)}.{note}</p>"
    score = max(_SCORES, key=lambda s: len({r.label for r in runs if s.key in r.result}))  # of equals, the first
    found: dict[str, list[float]] = {}
    for r in runs:
        if score.key in r.result:
            found.setdefault(r.label, []).append(r.result[score.key])
    if not found:
        return f"<p class=verdict>Nothing has been judged yet {escape(setting)}.{note}</p>"
    ranked = sorted(found, key=lambda label: score.rank(statistics.fmean(found[label])), reverse=True)
    best = ranked[0]
    value = score.shown(statistics.fmean(found[best]))
    reached = f"<b>{escape(best)}</b> reached <b>{value}</b> {score.what}"
    if len(found) > 1:
        reached += escape(_standing(ranked, found, score))
    rounds = max(r.rounds for r in runs if r.label == best)
    sentence = f"<p class=verdict>{reached} {escape(setting)}, after {rounds_of(rounds)}.{note}</p>"
    return sentence + _facts(runs, ranked, found, score)


def _apart(runs: Sequence[RunRecord]) -> str:
    """The first difference of the runs' data, such as ``data.name is "digits" and "shapes"``; empty: none."""
    tables = [r.config.get("data", {}) for r in runs]
    for key in dict.fromkeys(key for data in tables for key in data):
        values = list(dict.fromkeys(shown(data[key]) if key in data else "not said" for data in tables))
        if len(values) > 1:
            return f"data.{key} is {values[0]} and {values[1]}"
    for what, found in (
        ("the data are", [str(r.split["name"]) for r in runs if "name" in r.split]),
        ("clients are", [str(len(r.split["clients"])) for r in runs if "clients" in r.split]),
    ):
        values = list(dict.fromkeys(found))
        if len(values) > 1:
            return f"{what} {values[0]} and {values[1]}"
    return ""


def _standing(ranked: Sequence[str], found: dict[str, list[float]], score: Score) -> str:
    """What the first of several labels is: the best, if the next is further off than seeds are from each other."""
    first, second = (statistics.fmean(found[label]) for label in ranked[:2])
    if score.shown(first) == score.shown(second):
        return f", level with {ranked[1]}"
    spread = [apart for label in ranked[:2] if (apart := deviation(found[label])) is not None]
    if not spread:
        return f", the first of {len(found)} (one seed)"
    if abs(first - second) < max(spread):
        return f", the first of {len(found)}; seeds differ by more than it does from the next"
    return f", the best of {len(found)}"


def _setting(run: RunRecord) -> str:
    data = str(run.config.get("data", {}).get("name", run.split.get("name", "the data")))
    count = len(run.split.get("clients", {}))
    return f"on {data}" + (f" with {count} clients" if count else "")


def _facts(runs: Sequence[RunRecord], ranked: Sequence[str], found: dict[str, list[float]], score: Score) -> str:
    best = [r for r in runs if r.label == ranked[0]]
    facts = []
    if len(ranked) > 1:
        facts.append(("next", f"{ranked[1]}, {score.shown(statistics.fmean(found[ranked[1]]))}"))
    if len(ranked) > 2:
        facts.append(("last", f"{ranked[-1]}, {score.shown(statistics.fmean(found[ranked[-1]]))}"))
    apart = deviation(found[ranked[0]])
    if apart is not None:
        facts.append(("seeds", f"{len(found[ranked[0]])}, standard deviation {score.shown(apart)}"))
    worst = [r.result["local/accuracy_worst"] for r in best if "local/accuracy_worst" in r.result]
    if worst:
        facts.append(("worst client", percent(statistics.fmean(worst))))
    up, down = (statistics.fmean(r.total(f"bytes/{way}") for r in best) for way in ("up", "down"))
    facts.append(("traffic", f"{size(up)} up, {size(down)} down"))
    facts.append(("time", f"{statistics.fmean(r.total('seconds') for r in best):.1f} s"))
    facts.append(("client failures", str(sum(len(r.of_kind("failure")) for r in runs))))
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{escape(value)}</dd></div>' for name, value in facts)}</dl>"


def results(runs: Sequence[RunRecord]) -> str:
    """A table of runs; where there are several of a label, one of labels first."""
    each = _each(runs)
    if len({run.label for run in runs}) == len(runs):
        return each
    return _by_label(runs) + details(f"All {len(runs)} runs", "", each)


def _columns(runs: Sequence[RunRecord]) -> list[str]:
    return [c for c in _COLUMNS if any(c in run.outcome for run in runs)]


def _each(runs: Sequence[RunRecord]) -> str:
    columns = _columns(runs)
    heads = ["run", "rounds", *(_COLUMNS[c] for c in columns), "up", "down", "failures", "time"]
    rows = []
    for run in runs:
        planned = run.config.get("rounds", run.rounds)
        name = run.label if "seed" not in run.config else f"{run.label}, seed {run.config['seed']}"
        found = run.outcome
        values = [_cell(key, found[key]) if key in found else "" for key in columns]
        failures = len(run.of_kind("failure"))
        rounds = str(run.rounds) if run.finished else f"{run.rounds} of {planned}"
        rounds += f" (best: {run.result['round']})" if run.chosen_by and run.result else ""
        up, down = size(run.total("bytes/up")), size(run.total("bytes/down"))
        rows.append([name, rounds, *values, up, down, str(failures), f"{run.total('seconds'):.1f}\N{NO-BREAK SPACE}s"])
    return table(heads, rows, "Results of each run")


def _by_label(runs: Sequence[RunRecord]) -> str:
    columns = _columns(runs)
    heads = ["method", "seeds", *(_COLUMNS[c] for c in columns), "up", "down", "time"]
    rows = []
    for label in dict.fromkeys(run.label for run in runs):
        own = [run for run in runs if run.label == label]
        cells = []
        for key in columns:
            values = [run.outcome[key] for run in own if key in run.outcome]
            apart = deviation(values)
            spread = "" if apart is None else f" ± {_cell(key, apart)}"
            cells.append(_cell(key, statistics.fmean(values)) + spread if values else "")
        up, down = (size(statistics.fmean(run.total(f"bytes/{way}") for run in own)) for way in ("up", "down"))
        seconds = statistics.fmean(run.total("seconds") for run in own)
        rows.append([label, str(len(own)), *cells, up, down, f"{seconds:.1f}\N{NO-BREAK SPACE}s"])
    return table(heads, rows, "Results by method: mean and standard deviation over seeds")


def _cell(key: str, value: float) -> str:
    return percent(value) if "accuracy" in key else short(value)
