"""Runs benchmarks, prints their figures and writes them with all timings: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from benchmarks.figures import Figure, environment, show

NAMES = ("startup", "submodel", "structured", "he", "merge", "recsys", "engine", "flower")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures what fedfi costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which benchmarks: {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; figures say nothing")
    parser.add_argument("-o", "--out", type=Path, default=Path("results/benchmarks.json"), help="default: %(default)s")
    options = parser.parse_args()
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r} (choose from {', '.join(NAMES)})")

    figures: list[Figure] = []
    results = {"quick": options.quick, "environment": environment(), "benchmarks": {}}
    for name in options.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        report = importlib.import_module(f"benchmarks.{name}").run(options.quick)
        figures += report.figures
        results["benchmarks"][name] = report.as_json(judged=not options.quick)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    show(figures, judged=not options.quick)
    if options.quick:
        print("These are figures of a quick run, whose sizes are too small for them to mean anything.")
    print(f"All timings: {options.out}")


if __name__ == "__main__":
    main()
