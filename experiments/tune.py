"""Tunes the learning rate of each variant of an experiment on the server's validation examples.

Usage: python experiments/tune.py FILE.toml --rates 0.05,0.1,0.2 --rounds 50 --seed 0 --workers 2 -o OUT.json

A variant is a table `[compare.LABEL]` of the file. Each is trained once a rate; the rate with the best validation
accuracy (global model, last round) wins. Levels and clients are not judged, so nothing of the test set is seen.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from fedfi.cli.variants import variants
from fedfi.experiment import load_experiment
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run

EVALUATE = Evaluate(every=10_000, levels=False, local=False)


def validation_accuracy(job: tuple[str, str, float, int, int]) -> tuple[str, float, float]:
    file, label, rate, rounds, seed = job
    variant = variants(load_experiment(file), None)[label].changed({"seed": seed, "train": {"learning_rate": rate}})
    result = run(variant.algorithm(), variant.task(), rounds=rounds, seed=seed, evaluate=EVALUATE)
    accuracy = result.metrics[-1]["validation/accuracy"]
    print(f"{label} {rate} {accuracy:.4f}", flush=True)
    return label, rate, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--rates", default="0.05,0.1,0.2")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="tune these variants, and keep what the output file says of others")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    rates = [float(r) for r in options.rates.split(",")]
    labels = options.only.split(",") if options.only else list(variants(load_experiment(options.file), None))
    jobs = [(options.file, label, rate, options.rounds, options.seed) for label in labels for rate in rates]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("fork")) as pool:
        found = list(pool.map(validation_accuracy, jobs))
    before = json.loads(options.out.read_text()) if options.only else {"validation_accuracy": {}}
    table = before["validation_accuracy"] | {
        label: {str(r): a for name, r, a in found if name == label} for label in labels
    }
    best = {label: float(max(row, key=lambda r: row[r])) for label, row in table.items()}
    content = {"rounds": options.rounds, "seed": options.seed, "validation_accuracy": table, "best": best}
    options.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
