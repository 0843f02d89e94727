"""Sharing in packets and under encryption: votes, what came of them, and how much of the traffic is ciphertexts."""

from __future__ import annotations

from collections import Counter

from fedfi.report.cost import stacked
from fedfi.report.figures import Figure, bars, family, figure, present
from fedfi.report.reading import RunRecord, unit_for
from fedfi.report.view import Part

_MESSAGES, _REST = "bytes in messages", "bytes beside messages"


def encryption(run: RunRecord) -> Part:
    """Votes per packet, packets a round, bytes in messages."""
    return Part(
        "Shared and encrypted packets",
        present(
            [
                votes(run),
                family(
                    run,
                    r"packets/(.+)",
                    "Packets a round",
                    note="Wanted by somebody, agreed on by a vote, released to clients; or encrypted and in the clear.",
                ),
                messages(run),
                family(run, r"ciphertexts/(.+)", "Ciphertexts a round"),
            ]
        ),
        keys=r"packets/.*|ciphertexts/.*",
    )


def votes(run: RunRecord) -> Figure | None:
    """How many voted for each packet in the newest round, where the server sees votes."""
    found = run.exhibit("votes", "votes", "released", "voters", "needed", "packets")
    if found is None:
        return None
    tables = found.tensors
    count, needed, packets = tables["votes"].tolist(), int(tables["needed"]), int(tables["packets"])
    released = tables["released"].tolist()
    each = -(-packets // max(1, len(count)))
    traces = []
    for i, name in enumerate(("not released", "released")):
        chosen = [p for p, got in enumerate(released) if bool(got) == bool(i)]
        if chosen:
            traces.append(bars([p * each for p in chosen], [count[p] for p in chosen], name, 1 - i))
    note = f"{int(tables['voters'])} voted in round {found.scalars['round']}; a packet needs {needed} votes (the line)."
    if each > 1:
        note += f" A bar is the most votes of {each} packets."
    made = figure(traces, "Votes of each packet", "packet", y="votes", legend=True, note=note)
    if made:
        made["layout"] |= {
            "barmode": "overlay",
            "bargap": 0.05,
            "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": needed, "y1": needed}],
        }
    return made


def messages(run: RunRecord) -> Figure | None:
    """How many of the bytes up are sealed messages."""
    sealed: Counter[int] = Counter()
    for event in run.of_kind("replied"):
        sealed[event["round"]] += event.get("blobs", {}).get("message", 0)
    if not any(sealed.values()):
        return None
    lines = [
        {"round": m["round"], _MESSAGES: sealed[m["round"]], _REST: m["bytes/up"] - sealed[m["round"]]}
        for m in run.metrics
        if "bytes/up" in m
    ]
    names = ((_MESSAGES, "messages"), (_REST, "everything else"))
    scale, unit = unit_for(max((line[_MESSAGES] + line[_REST] for line in lines), default=0))
    made = stacked(run.with_metrics(lines), names, f"{unit} up in messages, by round", scale, unit)
    if made:
        note = "A message holds ciphertexts, the mask of its packets and a header; without encryption, plain numbers."
        made["layout"]["meta"] = {"note": note}
    return made
