"""The commands and their options. What they do is in the other files, loaded when needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfi.cli.flower import flower
from fedfi.cli.keys import keys

app = typer.Typer(
    help="Federated learning on uneven clients: what each trains, shares, hides and takes back.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(keys, name="keys")

_File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="An experiment.", show_default=False)]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting, such as train.learning_rate=0.1."),
]
_Workers = Annotated[int, typer.Option(min=1, help="Processes that do the work; changes no result.")]
_Rounds = Annotated[int | None, typer.Option(min=1, help="Replace the file's number of rounds.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
app.add_typer(flower, name="flower")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from; anywhere.")] = False,
) -> None:
    if version:
        from fedfi import __version__

        typer.echo(__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def run(
    file: _File,
    set_: _Set = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory; by default runs/FILE-ALGORITHM-N.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Replace the file's seed.")] = None,
    rounds: _Rounds = None,
    workers: _Workers = 1,
    quiet: _Quiet = False,
) -> None:
    """Run an experiment."""
    from fedfi.cli.running import start

    given = {"seed": seed, "rounds": rounds}
    settings = [f"{key}={value}" for key, value in given.items() if value is not None]
    start(file, [*(set_ or []), *settings], out, workers, quiet)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.", show_default=False)],
    workers: _Workers = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Go on to this round, beyond what was planned.")] = None,
    quiet: _Quiet = False,
) -> None:
    """Go on with a run that was interrupted."""
    from fedfi.cli.running import go_on

    go_on(directory, workers, rounds, quiet)


@app.command()
def compare(
    file: _File,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of all runs and of the table.")],
    algorithms: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Methods: NAME, NAME:PRESET or LABEL=NAME:PRESET; your own: module:Class.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="0,1,...", help="Seeds, all methods with each; 0-2 is 0,1,2.")] = "0",
    set_: _Set = None,
    rounds: _Rounds = None,
    workers: _Workers = 1,
    last: Annotated[int, typer.Option(min=1, help="Average the last so many evaluations of each run.")] = 1,
    quiet: _Quiet = False,
) -> None:
    r"""Run several methods on the same data and print one table.

    The file's tables \[compare.LABEL] add variants: keys of \[algorithm] that differ, perhaps train = {...}.
    Runs that are finished are kept, interrupted ones go on.
    """
    from fedfi.cli.comparing import compare as compare_

    settings = [] if rounds is None else [f"rounds={rounds}"]
    compare_(file, algorithms, seeds, out, [*(set_ or []), *settings], workers, last, quiet)


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|GRID.toml]", help="A grid; without one, all are listed.", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option(metavar="small|paper", help="Cut to two cores, or as the paper has it.")
    ] = "small",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Its directory; by default runs/GRID-SCALE."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,...", help="Run these instead of the grid's; 0-2 is 0,1,2.", show_default=False),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="A,B,...", help="These methods alone.")] = None,
    tune: Annotated[bool, typer.Option("--tune", help="Choose learning rates, and stop there.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Begin no run of a later seed after so long.", show_default=False)
    ] = None,
    workers: _Workers = 1,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Run a table of one of the papers again, and set it beside the paper's own figures.

    Learning rates that a grid leaves open are chosen on validation examples first. Runs that are there, of the same
    settings, are kept, so an interrupted grid goes on with the same command. Writes table.md, results.json, curves.csv.
    """
    from fedfi.cli.reproducing import reproduce as reproduce_
    from fedfi.cli.reproducing import show_names

    if name is None:
        show_names(json)
    else:
        reproduce_(name, scale, out, seeds, only, tune, minutes, workers, quiet)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="algorithms|datasets|models|partitions", show_default=False)],
    family: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only the algorithms of a family, such as submodel.", show_default=False),
    ] = None,
    json: _Json = False,
) -> None:
    """List what can be named in an experiment."""
    from fedfi.cli.listing import show_all

    show_all(what, json, family)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, model, data set or partition, a table (experiment, data, algorithm, ...), or module:name.",
            show_default=False,
        ),
    ],
    paper: Annotated[bool, typer.Option("--paper", help="A method's equations and deviations, too.")] = False,
) -> None:
    """Show all keys of a method, a model, a data set, a partition or a table."""
    from fedfi.cli.listing import show_one

    show_one(name, paper)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="A .safetensors file, or a .pt2 program.")],
    capacity: Annotated[
        str | None, typer.Option(help="A level of the run, such as 0.25; the whole model without it.")
    ] = None,
    quiet: _Quiet = False,
) -> None:
    """Write a run's model, or the submodel of a level, for deployment.

    Structured methods give a small dense network, unstructured ones the whole network with zeros. A .safetensors file
    holds its parameters and buffers by name; a .pt2 file is a program that plain PyTorch loads and runs. Missing
    folders above FILE are made, as for all outputs; the run is only read.
    """
    from fedfi.cli.exporting import export as export_

    export_(directory, capacity, out, quiet)


@app.command()
def recommend(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    user: Annotated[str | None, typer.Option(help="Whose recommendations to print.", show_default=False)] = None,
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="How many items a user.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE.csv", help="Write them as csv: those of all users, or of --user."),
    ] = None,
) -> None:
    """Recommend items to the users of a run.

    By its best round where one is chosen, else by its newest checkpoint; users and items are those it began with.
    """
    from fedfi.cli.recommending import recommend as recommend_

    recommend_(directory, user, count, out)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories, or directories of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE.html", help="The page; by default DIR/report.html."),
    ] = None,
    quiet: _Quiet = False,
) -> None:
    """Make one page of one or more runs."""
    from fedfi.cli.outputs import refuse_within_record
    from fedfi.report import write_report

    if out is None and len(directories) > 1:
        raise typer.BadParameter("of several directories needs a name for the page: -o FILE.html")
    out = out or directories[0] / "report.html"
    refuse_within_record(out, directories)
    write_report(directories, out)
    if not quiet:
        typer.echo(f"report: {out}")


@app.command()
def watch(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories, or directories of runs.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine alone; 0 takes a free one.")] = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Follow runs on a page that keeps itself up to date, until Ctrl-C."""
    from fedfi.cli.watching import watch as watch_

    watch_(directories, port, open_)


@app.command()
def doctor(json: _Json = False) -> None:
    """Show what is installed, which devices and data there are, and how to get what is missing."""
    from fedfi.cli.doctor import doctor as doctor_

    doctor_(json)


@app.command()
def audit(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    set_: _Set = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where table and page go; by default RUN/audit.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that are observed.")] = 1,
    clients: Annotated[int, typer.Option(min=1, help="Clients whose examples are reconstructed.")] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Steps of each reconstruction.")] = 600,
    quiet: _Quiet = False,
) -> None:
    """Attack what the server of a run sees: inputs, labels, membership.

    The run's next round is observed on a copy; with --set, the first of a fresh run.
    """
    from fedfi.cli.auditing import audit as audit_

    audit_(directories, set_ or [], out, rounds, clients, iterations, quiet)


_Classes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...|N", help="All labels in the model's order, or 0 to N-1, where a party may lack some."
    ),
]


_Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Names columns, categories and classes, of which these data may lack some: an upload, or inputs.json.",
    ),
]


@app.command()
def fisher(
    model: Annotated[str, typer.Option(help="The model: a name, or package.module:function.", show_default=False)],
    weights: Annotated[Path, typer.Option(metavar="FILE.safetensors", help="Its state dict.", show_default=False)],
    data: Annotated[str, typer.Option(help="What it was trained on: a name, a path, or a function.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="UPLOAD.safetensors", help="The upload.")],
    method: Annotated[
        str, typer.Option("--for", metavar="NAME[:PRESET]", help="What it will be merged by.")
    ] = "fedfiot",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="model.KEY=VALUE, data.KEY=VALUE, or KEY=VALUE of the method."),
    ] = None,
    party: Annotated[str | None, typer.Option(help="Whose it is; by default the upload's name.")] = None,
    classes: _Classes = None,
    bits: Annotated[int, typer.Option(help="Bits of a parameter, 16 or 32.")] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="Measure on so many examples at most.")] = None,
    inputs: _Inputs = None,
    quiet: _Quiet = False,
) -> None:
    """Write a party's upload: a trained model and what a merge needs to know of it.

    No data leave the party; the upload of a diagonal is as long as the model in 32 bits.
    """
    from fedfi.cli.merging import fisher as fisher_

    fisher_(model, weights, data, out, method, set_ or [], party, classes, bits, limit, inputs, quiet)


@app.command()
def merge(
    uploads: Annotated[list[Path], typer.Argument(metavar="UPLOAD...", help="Files of fedfi fisher.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="MERGED.safetensors", help="The merged model.")],
    method: Annotated[str, typer.Option(metavar="NAME[:PRESET]", help="How to merge.")] = "fedfiot",
    validate: Annotated[
        str | None, typer.Option(metavar="DATA", help="Examples to choose settings by, and to judge on.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="The model that all parties started from.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The uploads' model, where it is code of your own.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="KEY=VALUE of the method, or data.KEY=VALUE.")
    ] = None,
    classes: _Classes = None,
    inputs: _Inputs = None,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Merge models by their uploads, without a server; uploads that do not fit each other are refused."""
    from fedfi.cli.merging import merge as merge_

    merge_(uploads, method, out, validate, base, model, set_ or [], classes, inputs, json, quiet)
