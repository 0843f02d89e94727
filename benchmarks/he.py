"""What encryption costs: bytes against the float32 model, seconds against bare library calls on the same bytes.

**Full encryption.** Ten clients encrypt a vector of 582,026 and of 11.17 million parameters, one message each: fixed
point, weights, check values, packets, digests. The server opens each message and adds it up, one at a time. The bare
calls do nothing but encode, encrypt and save, or load, add and save, as many ciphertexts of the same parameters.
Contestants take turns; ratios are taken within a turn, and the figure is the median over turns.

**Selective sharing.** Ten clients upload a fifth of the packets each. A part of each mask is common to all, the rest is
the client's own, as far as packets last; the part goes from all (equal masks) to nothing (disjoint ones). Time and
download of the server are measured for the vote and for the union of selections. The figures are the worst case of
the sweep over equal masks: at most 1.1 for the vote, while the union grows. The sweep is in the results, and
`results/he-sweep.svg` shows it.

No network is trained here; the vectors are random.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Figure, Report, summary
from fedfi.crypto import seal
from fedfi.crypto.layout import PacketLayout
from fedfi.crypto.message import Gate, Terms
from fedfi.crypto.summing import CipherSum
from fedfi.linechart import Panel, svg
from fedfi.personal import voting
from fedfi.personal.encryption import Encryption, Exchange
from fedfi.personal.sealing import Sealer
from fedfi.personal.tally import Tally, counted

CLIENTS = 10
SIZES = (582_026, 11_173_962)
KAPPA = 0.2
OVERLAPS = (1.0, 0.75, 0.5, 0.25, 0.0)
SWEEP = Path(__file__).resolve().parent.parent / "results" / "he-sweep.svg"


def run(quick: bool = False) -> Report:
    """Measures both on one thread."""
    sizes, turns = ((20_000,), 1) if quick else (SIZES, 5)
    figures: list[Figure] = []
    timings: dict[str, Any] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for size in sizes:
            found, seconds = _full(size, turns if size < 10**6 else min(turns, 2))
            figures += found
            timings[f"full.{size}"] = seconds
        found, sweep = _selective(sizes[0], turns)
        figures += found
        timings["selective"] = sweep
        if not quick:
            SWEEP.parent.mkdir(exist_ok=True)
            SWEEP.write_text(_plot(sweep))
    finally:
        torch.set_num_threads(threads)
    return Report(figures, timings, {"clients": CLIENTS, "parameters": list(sizes), "kappa": KAPPA, "turns": turns})


def _exchange(size: int) -> Exchange:
    packet = Encryption().chosen().slots - 2
    layout = PacketLayout(("vector",), ((size,),), packet)
    return Exchange(Encryption(packet_size=packet, clip=8.0), layout, CLIENTS, "0" * 16)


def _sealer(exchange: Exchange, number: int) -> Sealer:
    return Sealer(exchange, SimpleNamespace(id=f"c{number}", seed=0, round=0))  # type: ignore[arg-type]


def _full(size: int, turns: int) -> tuple[list[Figure], dict[str, Any]]:
    exchange = _exchange(size)
    packets = exchange.layout.packets
    groups = [[i] for i in range(packets)]
    terms = exchange.terms(entries=packets, most=packets, packets=1, bound=True)
    everything = torch.ones(packets, dtype=torch.bool)
    vectors = [torch.randn(size, generator=torch.Generator().manual_seed(k)) for k in range(CLIENTS)]
    seconds: dict[str, list[float]] = {"encrypt": [], "bare encrypt": [], "sum": [], "bare sum": []}
    upload, error = 0, 0.0
    for _ in range(turns):
        tally, gate = Tally(exchange, groups), Gate(terms, round=0, phase=0, verify=None)
        taken, bare = 0.0, 0.0
        first: list[bytes] = []
        total = [CipherSum(exchange.encryption.chosen()) for _ in groups]
        for number, vector in enumerate(vectors):
            sealer = _sealer(exchange, number)
            sealer.seal(torch.zeros(1, dtype=torch.int64))  # the key is made once, not for each message
            started = time.perf_counter()
            message = sealer.message(terms, everything, groups, vector, 1.0)
            seconds["encrypt"].append(time.perf_counter() - started)
            seconds["bare encrypt"].append(_bare_encrypt(sealer, packets))
            upload = len(message)
            started = time.perf_counter()
            opened = gate.open(message, f"c{number}")
            tally.add(opened)
            taken += time.perf_counter() - started
            started = time.perf_counter()
            _bare_add(total, opened.payloads)
            bare += time.perf_counter() - started
            first = first or list(opened.payloads)
        started = time.perf_counter()
        release = tally.release(0, terms.key_id, 3)
        seconds["sum"].append(taken + time.perf_counter() - started)
        started = time.perf_counter()
        for t in total:
            t.result()
        seconds["bare sum"].append(bare + time.perf_counter() - started)
        exact = torch.stack([v.double() for v in vectors]).mean(0)
        opened_means = torch.zeros(packets, exchange.layout.packet_size)
        for packet, mean in _sealer(exchange, 0).means(release):
            opened_means[packet] = mean
        error = max(error, float((exchange.layout.joined(opened_means).double() - exact).abs().max()))
    name = f"he.full.{size}"
    figures = [
        Figure(f"{name}.upload", "upload / float32 model", upload / (4 * size), "x", at_most=2.0),
        Figure(f"{name}.encrypt", "encryption / bare library calls", _ratio(seconds, "encrypt"), "x", at_most=2.0),
        Figure(f"{name}.sum", "server's sum / bare library calls", _ratio(seconds, "sum"), "x", at_most=2.0),
        Figure(f"{name}.error", "largest error of a mean, in millionths", error * 1e6, "x", at_most=1.0),
    ]
    return figures, {k: summary(v) for k, v in seconds.items()}


def _bare_encrypt(sealer: Sealer, count: int) -> float:
    """The library's own calls: encode, encrypt, save."""
    parameters = sealer.exchange.encryption.chosen()
    secret = sealer._secret
    values = torch.randint(-(2**27), 2**27, (parameters.slots,)).numpy().tolist()
    encoder, plain = seal._tools(parameters), seal._library().Plaintext()
    started = time.perf_counter()
    for _ in range(count):
        encoder.encode(values, plain)
        seal.saved(secret._encryptor.encrypt_symmetric(plain))
    return time.perf_counter() - started


def _bare_add(total: Sequence[CipherSum], payloads: Sequence[bytes]) -> None:
    """The library's own calls: load, add."""
    for t, payload in zip(total, payloads, strict=True):
        t.add(payload)


def _ratio(seconds: dict[str, list[float]], name: str) -> float:
    return median(a / b for a, b in zip(seconds[name], seconds[f"bare {name}"], strict=True))


def _selective(size: int, turns: int) -> tuple[list[Figure], dict[str, Any]]:
    exchange = _exchange(size)
    packets = exchange.layout.packets
    kappa = voting.budget_of(KAPPA, packets)
    groups = [[i] for i in range(packets)]
    terms = exchange.terms(entries=packets, most=kappa, packets=1, bound=True)
    vectors = [torch.randn(size, generator=torch.Generator().manual_seed(k)) for k in range(CLIENTS)]
    sweep: dict[str, Any] = {"overlap": list(OVERLAPS)}
    kinds = ("vote", "union")
    for kind in kinds:
        sweep[kind] = {"seconds": [], "download": [], "packets": []}
    upload = 0
    for overlap in OVERLAPS:
        masks = _masks(packets, kappa, overlap)
        messages = [_sealer(exchange, k).message(terms, mask, groups, vectors[k], 1.0) for k, mask in enumerate(masks)]
        upload = max(upload, *map(len, messages))
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        release: dict[str, bytes] = {}
        for _ in range(turns):
            for kind in kinds:
                started = time.perf_counter()
                release[kind], summed = _server(exchange, terms, groups, messages, kappa, union=kind == "union")
                taken[kind].append(time.perf_counter() - started)
                if len(taken[kind]) == 1:
                    sweep[kind]["packets"].append(summed)
        for kind in kinds:
            sweep[kind]["seconds"].append(summary(taken[kind]))
            sweep[kind]["download"].append(len(release[kind]))
    figures = [
        Figure("he.kappa.upload", "upload at kappa = 20 % / float32 model", upload / (4 * size), "x", at_most=0.45)
    ]
    for kind, most in (("vote", 1.1), ("union", None)):
        times = [s["median"] for s in sweep[kind]["seconds"]]
        down = sweep[kind]["download"]
        figures += [
            Figure(
                f"he.kappa.{kind}.seconds",
                f"{kind}: worst masks / equal masks, server time",
                max(times) / times[0],
                "x",
                at_most=most,
            ),
            Figure(
                f"he.kappa.{kind}.download",
                f"{kind}: worst masks / equal masks, download",
                max(down) / down[0],
                "x",
                at_most=most,
            ),
        ]
    return figures, sweep


def _masks(packets: int, kappa: int, overlap: float) -> list[Tensor]:
    """A common part, and parts that differ from client to client as far as there are packets."""
    common = round(overlap * kappa)
    rest = list(range(common, packets))
    masks = []
    for client in range(CLIENTS):
        mask = torch.zeros(packets, dtype=torch.bool)
        mask[:common] = True
        start = client * (kappa - common)
        for i in range(kappa - common):
            mask[rest[(start + i) % len(rest)]] = True
        masks.append(mask)
    return masks


def _server(
    exchange: Exchange, terms: Terms, groups: list[list[int]], messages: Sequence[bytes], kappa: int, *, union: bool
) -> tuple[bytes, int]:
    """All that the server does in a round: the release, and how many packets were summed."""
    gate = Gate(terms, round=0, phase=0, verify=None)
    opened = [gate.open(m, f"c{k}") for k, m in enumerate(messages)]
    votes = counted([m.mask for m in opened], exchange.layout.packets)
    rule = voting.Rule(0.25, voting.LEAST, kappa)
    wanted = votes > 0 if union else voting.consensus(votes, len(opened), rule, "bench")
    tally = Tally(exchange, groups)
    for message in opened:
        tally.add(message, wanted)
    release = tally.release(0, terms.key_id, 1 if union else voting.LEAST)
    return release.encode(), len(release.sums)


def _plot(sweep: dict[str, Any]) -> str:
    """The sweep as a picture: download over that of equal masks, by how much masks differ."""
    lines = {
        kind: [
            (1 - overlap, download / sweep[kind]["download"][0])
            for overlap, download in zip(sweep["overlap"], sweep[kind]["download"], strict=True)
        ]
        for kind in ("vote", "union")
    }
    return svg([Panel("", lines)], "from equal to disjoint masks", "download / that of equal masks")
