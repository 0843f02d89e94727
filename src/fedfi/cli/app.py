"""The commands and their options. What they do is in the other files, loaded when needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Federated learning on uneven clients: what each trains, shares, hides and takes back.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="An experiment.", show_default=False)]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting, such as train.learning_rate=0.1."),
]
_Workers = Annotated[int, typer.Option(min=1, help="Processes that do the work; changes no result.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
    rounds: Annotated[int | None, typer.Option(min=1, help="Replace the file's number of rounds.")] = None,
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
    workers: _Workers = 1,
    last: Annotated[int, typer.Option(min=1, help="Average the last so many evaluations of each run.")] = 1,
    quiet: _Quiet = False,
) -> None:
    r"""Run several methods on the same data and print one table.

    The file's tables \[compare.LABEL] add variants: keys of \[algorithm] that differ, perhaps train = {...}.
    Runs that are finished are kept, interrupted ones go on.
    """
    from fedfi.cli.comparing import compare as compare_

    compare_(file, algorithms, seeds, out, set_ or [], workers, last, quiet)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="algorithms|datasets|models|partitions", show_default=False)],
    json: _Json = False,
) -> None:
    """List what can be named in an experiment."""
    from fedfi.cli.listing import show_all

    show_all(what, json)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, model, data set or partition, a table (experiment, data, train, evaluate), or module:name.",
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
    holds its parameters and buffers by name; a .pt2 file is a program that plain PyTorch loads and runs.
    """
    from fedfi.cli.exporting import export as export_

    export_(directory, capacity, out, quiet)


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
    from fedfi.report import write_report

    if out is None and len(directories) > 1:
        raise typer.BadParameter("of several directories needs a name for the page: -o FILE.html")
    out = out or directories[0] / "report.html"
    write_report(directories, out)
    if not quiet:
        typer.echo(f"report: {out}")
