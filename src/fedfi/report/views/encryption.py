"""Sharing in packets and under encryption: votes, what came of them, and how much of the traffic is ciphertexts."""

from __future__ import annotations

from fedfi.report.cost import stacked
from fedfi.report.figures import Figure, bars, family, figure, present
from fedfi.report.reading import RunRecord, unit_for
from fedfi.report.view import Part

_SEALED = ("bytes/up_encrypted", "bytes/up_encrypted_votes")


def encryption(run: RunRecord) -> Part:
    """Votes per packet, packets a round, encrypted bytes."""
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
                encrypted(run),
                family(run, r"ciphertexts/(.+)", "Ciphertexts a round"),
            ]
        ),
        keys=r"packets/.*|ciphertexts/.*|bytes/up_encrypted(_votes)?",
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


def encrypted(run: RunRecord) -> Figure | None:
    """How many of the bytes up are ciphertexts."""
    if not any(key in m for m in run.metrics for key in _SEALED):
        return None
    lines = [m | {"bytes/up_other": m["bytes/up"] - sum(m.get(k, 0) for k in _SEALED)} for m in run.metrics]
    names = (
        ("bytes/up_encrypted", "ciphertexts of values"),
        ("bytes/up_encrypted_votes", "ciphertexts of votes"),
        ("bytes/up_other", "everything else"),
    )
    scale, unit = unit_for(max((m.get("bytes/up", 0) for m in lines), default=0))
    return stacked(run.with_metrics(lines), names, f"Encrypted {unit} a round, up", scale, unit)
