"""Two transformers that were fine-tuned from one start, merged from files, with the start as `--base`.

    python examples/merge_transformers.py             # short made-up reviews, a minute or two; needs fedfi[text]
    python examples/merge_transformers.py --checkpoint FOLDER   # a pretrained RoBERTa and its tokenizer instead

Both parties begin from the same model: pretrained on other texts here, or a checkpoint of yours. One fine-tunes on
reviews of books, the other of meals. Each runs `fedfi fisher`; whoever has the files and the start runs `fedfi merge`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import fedfi
from fedfi.cli import main as command

METHODS = ("average", "task-arithmetic", "ties", "fedfiot")
LENGTH = 16
THINGS = {
    "books": ["novel", "plot", "chapter", "author", "ending", "hero"],
    "meals": ["soup", "dessert", "waiter", "table", "sauce", "bread"],
    "films": ["actor", "scene", "music", "camera", "sequel", "script"],
}
SAYS = {  # each topic has words of its own, so that neither party knows the other's
    "books": {"bad": ["dull", "clumsy", "muddled", "hollow"], "good": ["gripping", "witty", "deep", "elegant"]},
    "meals": {"bad": ["cold", "bitter", "stale", "greasy"], "good": ["fresh", "crisp", "tender", "fragrant"]},
    "films": {"bad": ["noisy", "flat", "wooden", "endless"], "good": ["radiant", "tense", "funny", "bold"]},
}
FRAMES = ["the {0} was {1}", "such a {1} {0}", "we found the {0} rather {1}", "{1} {0} , all in all", "a {0} so {1}"]


def reviews(topic: str, count: int, good: float, rng: random.Random) -> list[tuple[str, str]]:
    """Made-up reviews of a topic and whether they are good or bad; `good` of them are good."""
    found = []
    for _ in range(count):
        label = "good" if rng.random() < good else "bad"
        frame = rng.choice(FRAMES)
        words = frame.format(rng.choice(THINGS[topic]), rng.choice(SAYS[topic][label])).split()
        found.append((" ".join(words), label))
    return found


def write(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    """A party's own table."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def tokenizer(folder: Path, texts: Sequence[str]) -> None:
    """A small tokenizer that everybody uses, learnt from texts that nobody needs to hide."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], show_progress=False))
    made.enable_padding(length=LENGTH, pad_id=0, pad_token="[PAD]")
    made.save(str(folder / "tokenizer.json"))


def tuned(model: torch.nn.Module, examples: fedfi.Examples, epochs: int, rate: float, seed: int) -> torch.nn.Module:
    """What a party does with its own texts; nothing here is fedfi's but the network."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(examples)).split(32):
            inputs, targets = examples.batch(rows)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return model.eval()


def accuracy(model: torch.nn.Module, examples: fedfi.Examples) -> float:
    """The share of texts that are understood."""
    inputs, targets = examples.batch()
    with torch.no_grad():
        return float((model.eval()(inputs).argmax(1) == targets).float().mean())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Fine-tunes, uploads, merges, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a RoBERTa, as a folder with its tokenizer.json")
    parser.add_argument("--reviews", type=int, default=600, help="of each party")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("runs/merge-transformers"))
    options = parser.parse_args(arguments)
    out, rng = options.out, random.Random(0)
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "start": reviews("films", options.reviews // 4, 0.5, rng),
        "books": reviews("books", options.reviews, 0.8, rng),
        "meals": reviews("meals", options.reviews, 0.2, rng),
        "judge": reviews("books", 50, 0.5, rng) + reviews("meals", 50, 0.5, rng),
        "test": reviews("books", 200, 0.5, rng) + reviews("meals", 200, 0.5, rng),
    }
    folder = Path(options.checkpoint) if options.checkpoint else out / "tokenizer"
    if not options.checkpoint:
        words = [word for says in SAYS.values() for side in says.values() for word in side]
        tokenizer(folder, [*FRAMES, *(" ".join(things) for things in THINGS.values()), " ".join(words)])
    about = {"text": "text", "label": "label", "tokenizer": str(folder), "length": LENGTH}
    held = {name: fedfi.load(str(write(out / f"{name}.csv", rows)), **about)[0] for name, rows in tables.items()}
    spec = held["start"].spec
    sizes = {"layers": options.layers, "hidden": options.hidden, "intermediate": 2 * options.hidden}
    given = {"checkpoint": options.checkpoint} if options.checkpoint else sizes
    settings = [x for key, value in given.items() for x in ("--set", f"model.{key}={json.dumps(value)}")]
    name = "roberta"
    if options.checkpoint:  # an upload names no folder to load from: whoever merges names the code that does
        code = "import fedfi\n\n\ndef network(spec):\n    return fedfi.build('roberta', spec, checkpoint={!r})\n"
        (out / "pretrained.py").write_text(code.format(str(Path(options.checkpoint).resolve())))
        sys.path.insert(0, str(out.resolve()))
        name, settings = "pretrained:network", []
    columns = [x for key, value in about.items() for x in ("--set", f"data.{key}={json.dumps(value)}")]

    def network(weights: Path | None = None) -> torch.nn.Module:
        torch.manual_seed(0)
        model = fedfi.build("roberta", spec, given)
        if weights is not None:
            model.load_state_dict(load_file(weights))
        return model

    start = out / "start.safetensors"
    save(tuned(network(), held["start"].examples(), options.epochs, 1e-3, 0), start)
    test, scores, uploads = held["test"].examples(), {}, []
    scores["start"] = accuracy(network(start), test)
    for seed, party in enumerate(("books", "meals"), start=1):
        model = tuned(network(start), held[party].examples(), options.epochs, 5e-4, seed)
        weights, upload = out / f"{party}.safetensors", out / f"{party}.upload"
        save(model, weights)
        scores[f"party {party}"] = accuracy(model, test)
        files = ["--weights", str(weights), "--data", str(out / f"{party}.csv"), "-o", str(upload)]
        run(["fisher", "--model", name, *settings, *columns, "--classes", "bad,good", *files])
        uploads.append(str(upload))
    for method in METHODS:
        merged = out / f"{method}.safetensors"
        judge = ["--validate", str(out / "judge.csv"), *columns, "--classes", "bad,good"]
        base = ["--base", str(start)] if method in ("ties", "task-arithmetic") else []  # task vectors have a start
        run(["merge", *uploads, "--model", name, "--method", method, *judge, *base, "-o", str(merged)])
        scores[method] = accuracy(network(merged), test)
    for label, score in scores.items():
        print(f"{score:6.1%}  {label}")
    return scores


def save(model: torch.nn.Module, path: Path) -> None:
    """A state dict of tensors of their own."""
    save_file({n: t.clone().contiguous() for n, t in model.state_dict().items()}, path)


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
