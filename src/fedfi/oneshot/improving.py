"""What may bring a merged model nearer to the ensemble, whatever it was merged by; each alone, or together.

| option of every merge | what it does | in |
|---|---|---|
| `class_prior` | takes each client's class frequencies off its logits, before the merge | `priors` |
| `tune_weights` | searches the clients' weights by the server's examples, one merge a try | here |
| `rescale` | gives the merged model's units the spread that they have in the clients' | `rescaling` |
| `distil` | teaches the merged model what the ensemble says, on the server's inputs or generated ones | `distilling` |

They happen in this order, and what each of them needs is looked at before the merge. The ensemble is that of mean
probabilities, of models whose logits are corrected, if they are. `rescale` and `tune_weights` are about one network of
the clients' widths; for a method that deploys something else (an ensemble, a grown network) they are refused, unless
`distil` follows, whose student is such a network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedfi.errors import InputError
from fedfi.federation.algorithm import Metrics
from fedfi.oneshot.distilling import distil_on_server, mean_probabilities
from fedfi.oneshot.generating import Stages, distil_on_generated
from fedfi.oneshot.generators import check_made
from fedfi.oneshot.priors import check_head, corrected
from fedfi.oneshot.rescaling import rescaled
from fedfi.oneshot.server import Server
from fedfi.oneshot.uploads import Merged, Upload, Weights, masses, shares

_STAGES = 10  # of generated inputs: half of DENSE's, with a quarter of the inputs each

Distil = Literal["no", "server", "generated"]
Merge = Callable[[Sequence[Upload], torch.Generator], Merged]


@dataclass(frozen=True)
class Improvements:
    """The options; see the fields of `method.Merging`."""

    class_prior: float = 0.0
    tune_weights: int = 0
    rescale: bool = False
    distil: Distil = "no"
    distil_steps: int = 300
    distil_rate: float = 0.01
    distil_temperature: float = 1.0


def check_improvements(options: Improvements, server: Server, *, another: bool) -> None:
    """Checks what the options need, before anything is merged.

    Args:
        options: What to do.
        server: The network and the server's examples.
        another: Whether the method deploys anything but one network of the clients' widths.

    Raises:
        InputError: If an option needs the server's examples and there are none, does not fit the method, or does not
            fit the network.
    """
    for option, needs in (("tune_weights", "judges on"), ("rescale", "measures units on")):
        if getattr(options, option):
            if server.examples is None:
                raise server.without_examples(f"{option} {needs}")
            if another and options.distil == "no":
                raise _of_another(option)
    if options.distil == "server" and server.examples is None:
        raise server.without_examples("distil = 'server' needs")
    if options.distil == "generated":
        check_made(server.task.data.spec)
    if options.class_prior:
        check_head(server)
    if options.rescale:
        _ = server.wiring  # found once, where it can be


def improved(
    uploads: Sequence[Upload],
    merge: Merge,
    settle: Callable[[Merged], Merged],
    server: Server,
    weights: Weights,
    options: Improvements,
    rng: torch.Generator,
) -> Merged:
    """Merges, with what was chosen before and after.

    Args:
        uploads: What is merged.
        merge: The method.
        settle: Measures batch norms of what was merged anew, where that is wanted.
        server: The network and the server's examples.
        weights: What clients weigh.
        options: What to do.
        rng: Source of all draws.

    Raises:
        InputError: If an option needs the server's examples and there are none, or does not fit the method.
    """
    if options.class_prior:
        uploads = corrected(uploads, server, options.class_prior)
    if options.tune_weights:
        uploads, merged = _tuned(uploads, merge, settle, server, weights, options, rng)
    else:
        merged = settle(merge(uploads, rng))
    if options.rescale:
        _check_one(merged, "rescale", options)
        models, party = [u.model for u in uploads], shares(uploads, weights)
        model = rescaled(server, merged.model, models, merged.orders, party)
        merged = settle(replace(merged, model=model))
    if options.distil != "no":
        merged = settle(_distilled(uploads, merged, server, options, rng))
    return merged


def _tuned(
    uploads: Sequence[Upload],
    merge: Merge,
    settle: Callable[[Merged], Merged],
    server: Server,
    weights: Weights,
    options: Improvements,
    rng: torch.Generator,
) -> tuple[list[Upload], Merged]:
    """Doubles or halves one client's weight at a time where the merge then scores better."""
    seed = int(torch.randint(2**31, (), generator=rng))  # all tries draw the same
    tries = 0

    def tried(masses: Sequence[float]) -> tuple[list[Upload], Merged, float]:
        nonlocal tries
        tries += 1
        weighed = [replace(u, weight=m) for u, m in zip(uploads, masses, strict=True)]
        merged = settle(merge(weighed, torch.Generator().manual_seed(seed)))
        _check_one(merged, "tune_weights", options)
        return weighed, merged, server.score(merged.model)

    held = masses(uploads, weights)
    best = tried(held)
    for _ in range(options.tune_weights):
        before = best
        for i in range(len(uploads)):
            for factor in (2.0, 0.5):
                other = [m * factor if j == i else m for j, m in enumerate(held)]
                found = tried(other)
                if found[2] > best[2]:
                    best, held = found, other
                    break
        if best is before:
            break
    weighed, merged, score = best
    metrics: Metrics = {f"weight/{u.party}": s for u, s in zip(uploads, shares(weighed, weights), strict=True)}
    return weighed, replace(
        merged, metrics=merged.metrics | metrics | {"tune/score": score, "tune/tries": float(tries)}
    )


def _distilled(
    uploads: Sequence[Upload], merged: Merged, server: Server, options: Improvements, rng: torch.Generator
) -> Merged:
    networks = [copy.deepcopy(server.loaded(u.model)).requires_grad_(False) for u in uploads]
    teacher = mean_probabilities(networks)
    if options.distil == "server":
        model = distil_on_server(
            server,
            merged.model,
            teacher,
            steps=options.distil_steps,
            learning_rate=options.distil_rate,
            temperature=options.distil_temperature,
            rng=rng,
        )
    else:
        count = min(_STAGES, options.distil_steps)
        recipe = Stages(
            stages=count,
            batch=64,
            generator_steps=20,
            steps=options.distil_steps // count,
            learning_rate=options.distil_rate,
            temperature=options.distil_temperature,
        )
        model, _ = distil_on_generated(server, merged.model, networks, teacher, recipe, rng)
    return replace(merged, model=model, deployed=None)


def _check_one(merged: Merged, option: str, options: Improvements) -> None:
    if merged.deployed is not None and options.distil == "no":
        raise _of_another(option)


def _of_another(option: str) -> InputError:
    return InputError(
        f"{option} is about one network of the clients' widths, but this method deploys another"
        " (nearest valid: grow = false where there is such an option, or distil as well)"
    )
