"""A run directory in which every view of the report has something to show."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path

import torch
from PIL import Image

from fedfi.federation.exhibits import FOLDER
from fedfi.federation.packet import Packet

LEVELS = ("1.0", "0.5", "0.25", "0.125", "0.0625")
LAYERS = ("body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias")
CLIENTS = tuple(f"hospital-{i}" for i in range(12))
ROUNDS = 12


_PLAIN = ("round", "seconds", "global", "local", "bytes/up", "bytes/down", "train/loss")


def everything(path: Path, seed: int = 0, name: str = "fedfibos", *, plain: bool = False) -> Path:
    """Numbers and tables of all families, as if one method had them all; or, plain, of a baseline."""
    path.mkdir(parents=True)
    settings = f'rounds = {ROUNDS}\nseed = {seed}\n[data]\nname = "toy"\n[algorithm]\nname = "{name}"\n'
    (path / "run.toml").write_text(settings)
    (path / "env.json").write_text(
        json.dumps({"python": "3.11", "packages": {"torch": "2.6"}, "import_from": ["/a" * 60]})
    )
    parts = {
        c: {"train": {"size": 7 * i + 3, "class_counts": [i, 3, 6 * i]}, "test": {"size": 2}}
        for i, c in enumerate(CLIENTS)
    }
    split = {"name": "toy", "kind": "examples", "labels": ["well", "ill", "unknown"], "clients": parts}
    (path / "split.json").write_text(json.dumps(split))
    lines = [numbers(round, seed) for round in range(1, ROUNDS + 1)]
    if plain:
        lines = [{k: v for k, v in line.items() if k in _PLAIN or k.partition("/")[0] in _PLAIN} for line in lines]
    _write(path / "metrics.jsonl", lines)
    _write(path / "events.jsonl", events())
    if not plain:
        exhibits(path)
        audit(path)
    return path


def numbers(round: int, seed: int) -> dict[str, float]:
    """A line of metrics."""
    rise = 1 - math.exp(-round / 4) - 0.05 * seed
    line: dict[str, float] = {"round": round, "seconds": 1 + 0.1 * seed, "train/loss": 2 - rise}
    for key in ("global", "levels/mean", *(f"levels/{level}" for level in LEVELS)):
        line |= {f"{key}/accuracy": 0.9 * rise, f"{key}/loss": 2.3 - 2 * rise}
    line |= {"local/accuracy_mean": 0.8 * rise, "local/loss_mean": 2 - rise, "local/accuracy_worst": 0.3 * rise}
    for i, level in enumerate(LEVELS):
        line |= {f"jaccard/{level}": 1 / (i + 1), f"keep_lowest/{level}": float(level) / 2}
        line |= {f"masking_error/{level}": 1.0 + i, f"masking_error_magnitude/{level}": 2.0 + i}
        line |= {f"keep/{level}/{layer}": min(1.0, float(level) * (1 + j / 4)) for j, layer in enumerate(LAYERS)}
    line |= {"cv_fisher": 8.0, "cv_magnitude": 0.8, "bytes/up": 1.5e6, "bytes/down": 1e6, "clients/asked": 6.0}
    line |= {
        f"objective/{when}/{layer}": 10.0 / (k + 1) for k, when in enumerate(("before", "after")) for layer in LAYERS
    }
    line |= {"objective/aligned": 12.0, "objective/identity": 20.0, "permuted": 0.5, "merge/rho": 0.3}
    line |= {f"permuted/{layer}": 0.4 for layer in LAYERS} | {f"distance/{c}": 3.0 for c in CLIENTS}
    line |= {"packets/wanted": 40.0, "packets/agreed": 12.0, "packets/released": 11.0, "ciphertexts/released": 11.0}
    line |= {"ranking/hr@10": 0.1 * rise}
    if round in (4, 8):
        line["means/taken"] = 20.0
    return line | {"my/own number": float(round), "my/other": 2.0, "alone": 1.0}


def events() -> list[dict[str, object]]:
    """Judgements of all clients, a failure and a warning."""
    found: list[dict[str, object]] = [
        {
            "event": "evaluated",
            "round": round,
            "client": client,
            "metrics": {"accuracy": (i + 1) / 13 * round / ROUNDS, "examples": 5},
        }
        for round in range(1, ROUNDS + 1)
        for i, client in enumerate(CLIENTS)
    ]
    found += [
        {"event": "replied", "round": round, "client": c, "bytes": 2e5, "blobs": {"message": 100_000, "clear": 10}}
        for round in range(1, ROUNDS + 1)
        for c in CLIENTS[:6]
    ]
    error = "ValueError: " + "a long reason why this client could not deliver its update " * 4
    found.append({"event": "failure", "round": 2, "client": "hospital-3", "stage": "client_update", "error": error})
    found.append({"event": "warning", "round": 2, "key": "empty", "text": "nothing kept"})
    return [*found, {"event": "done", "rounds": ROUNDS}]


def exhibits(path: Path) -> None:
    """What the families show besides numbers."""
    rng = torch.Generator().manual_seed(0)
    size = 40
    own = torch.arange(size) < 10
    before = torch.randn(size, 8, generator=rng)
    tables = {
        "alignment": Packet({layer: 3 * torch.eye(16, dtype=torch.int32) for layer in LAYERS[:2]}, {"parties": 3}),
        "votes": Packet(
            {
                "votes": torch.arange(30) % 9,
                "released": (torch.arange(30) % 9 > 5).long(),
                "voters": torch.tensor(10),
                "needed": torch.tensor(6),
                "packets": torch.tensor(30),
            }
        ),
        "guidance": Packet(
            {
                "gates": torch.arange(20),
                "gates_own": torch.arange(20).flip(0),
                "before": before,
                "after": before + 0.5 * own[:, None],
                "mean": before,
                "own": own,
            },
            {"user": "u7", "users": 32, "beta": 0.5},
        ),
    }
    (path / FOLDER).mkdir()
    for name, packet in tables.items():
        content = Packet(packet.tensors, {**packet.scalars, "round": 8}).encode()
        (path / FOLDER / f"{name}.safetensors").write_bytes(content)


def audit(path: Path) -> None:
    """What `fedfi audit` leaves."""
    folder = path / "audit"
    folder.mkdir()
    row = {"name": "toy", "method": "FedAvg", "known/share": 1.0, "inversion/psnr": 12.5, "membership/auc": 0.61}
    (folder / "audit.json").write_text(json.dumps([row]))
    pairs = [
        {"name": "toy", "caption": f"client {i}, round 1", "original": _png(40 * i), "reconstruction": _png(200)}
        for i in range(3)
    ]
    (folder / "pictures.json").write_text(json.dumps(pairs))


def _png(grey: int) -> str:
    buffer = io.BytesIO()
    Image.new("L", (8, 8), grey).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _write(path: Path, lines: list[dict[str, object]] | list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
