"""Two ResNet-18s that never met, merged from files: own initialisations, own halves of the data, plain PyTorch.

    python examples/merge_resnets.py                                             # handwritten digits, a few minutes
    FEDFI_DATA=... python examples/merge_resnets.py --data cifar10 --width 1.0 --epochs 20   # the full network

Each party trains by itself and runs `fedfi fisher` on its weights and its own examples. Whoever has the two files runs
`fedfi merge`, here with a few hundred examples to judge by. Everything that a party hands over is in its upload.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import fedfi
from fedfi.cli import main as command

METHODS = {
    "average": [],
    "rebasin": [],
    "fedfiot": [],
    "fedfiot, closer to the ensemble": ["--set", "rescale=true", "--set", 'distil="server"'],
}


def train(spec: fedfi.InputSpec, examples: fedfi.Examples, options: argparse.Namespace, seed: int) -> torch.nn.Module:
    """What a party does with its own examples; nothing here is fedfi's but the network."""
    torch.manual_seed(seed)
    model = fedfi.build("resnet18", spec, {"width": options.width, "norm": options.norm}).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    steps = options.epochs * (len(examples) // 64 + 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(options.epochs):
        for rows in torch.randperm(len(examples)).tensor_split(len(examples) // 64 + 1):
            inputs, targets = examples.batch(rows)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def save_examples(path: Path, examples: fedfi.Examples) -> None:
    """A party's own file of pictures."""
    pictures = examples.dataset.inputs[examples.indices].movedim(1, -1).numpy()
    targets = examples.targets.numpy()
    np.savez(path, x_train=pictures, y_train=targets, x_test=pictures[:1], y_test=targets[:1])


def accuracy(spec: fedfi.InputSpec, options: argparse.Namespace, weights: Path, test: fedfi.Examples) -> float:
    """Of a state dict, on examples that neither party nor the one who merges has seen."""
    model = fedfi.build("resnet18", spec, {"width": options.width, "norm": options.norm})
    model.load_state_dict(load_file(weights))
    model.eval()
    right = 0
    with torch.no_grad():
        for rows in torch.arange(len(test)).split(250):
            inputs, targets = test.batch(rows)
            right += int((model(inputs).argmax(1) == targets).sum())
    return right / len(test)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, uploads, merges, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--width", type=float, default=0.25, help="of 64 to 512 channels; 1.0 is 11 million parameters")
    parser.add_argument("--norm", default="batch", choices=["batch", "group"])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet distribution of classes")
    parser.add_argument("--validation", type=int, default=200, help="examples of the one who merges")
    parser.add_argument("--out", type=Path, default=Path("runs/merge-resnets"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    loaded, held = fedfi.load(options.data)
    partition = {"by": "dirichlet-per-client", "alpha": options.alpha}
    data = fedfi.federate(loaded, held, clients=2, partition=partition, validation=options.validation, seed=0)
    assert data.validation is not None  # asked for above
    save_examples(options.out / "judge.npz", data.validation)
    network = ["--set", f"model.width={options.width}", "--set", f'model.norm="{options.norm}"']
    scores, uploads = {}, []
    for seed, (name, client) in enumerate(data.clients.items()):
        weights, upload = options.out / f"{name}.safetensors", options.out / f"{name}.upload"
        save_examples(options.out / f"{name}.npz", client.train)
        save_file(train(data.spec, client.train, options, seed).state_dict(), weights)
        scores[f"party {name}, {len(client.train)} examples"] = accuracy(data.spec, options, weights, data.test)
        given = ["--model", "resnet18", *network, "--weights", str(weights), "--data", str(options.out / f"{name}.npz")]
        run(["fisher", *given, "--classes", str(data.spec.classes), "-o", str(upload)])
        uploads.append(str(upload))
    for name, more in METHODS.items():
        out = options.out / f"{name.split(',')[0]}.safetensors"
        judge = ["--validate", str(options.out / "judge.npz")]
        said = run(["merge", *uploads, "--method", name.split(",")[0], *judge, *more, "-o", str(out), "--json"])
        scores[name] = accuracy(data.spec, options, out, data.test)
        if name == "fedfiot":
            print(f"neurons that changed place: {json.loads(said)['merge']['permuted']:.0%}")
    for name, score in scores.items():
        print(f"{score:6.1%}  {name}")
    return scores


def run(arguments: list[str]) -> str:
    """A fedfi command, as in a shell; what it prints."""
    print("fedfi", *arguments)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = command(arguments)
    if code:
        raise SystemExit(code)
    return said.getvalue()


if __name__ == "__main__":
    main()
