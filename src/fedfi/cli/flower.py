"""`fedfi flower ...`: apps, keys, and a federation on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fedfi.errors import InputError, counted

if TYPE_CHECKING:
    from fedfi.flower.local import LocalFederation


class _WithDefault(TyperGroup):
    """`fedfi flower FILE.toml -o DIR` is `fedfi flower app FILE.toml -o DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["app", *args]
        return list(super().parse_args(ctx, args))


flower = typer.Typer(
    cls=_WithDefault,
    no_args_is_help=True,
    help="Run an experiment on Flower: `fedfi flower FILE.toml -o APPDIR` writes a Flower app.",
)

_File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="An experiment.", show_default=False)]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting, such as train.learning_rate=0.1."),
]
_Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the federation.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
_HERE = Path("flower-federation")


@flower.command()
def app(
    file: _File,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="APPDIR", help="Directory of the app, new or empty.")],
    set_: _Set = None,
    publisher: Annotated[str, typer.Option(help="Whose app it is, on Flower Hub.")] = "fedfi",
    quiet: _Quiet = False,
) -> None:
    """Write a Flower app of an experiment, for Flower's simulation and its deployment alike."""
    from fedfi.experiment import load_experiment
    from fedfi.flower.appdir import write_app

    write_app(load_experiment(file, set_ or []), out, name=file.stem, publisher=publisher)
    if not quiet:
        typer.echo(f"{out}: a Flower app; `flwr run {shlex.quote(str(out))}` runs it, {out / 'README.md'} tells more")


@flower.command()
def up(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.toml]",
            help="An experiment; without it the federation of --dir is started again.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="SuperNodes, among which the clients are divided.", show_default="4")
    ] = None,
    directory: _Dir = _HERE,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys; on loopback, as always.")] = False,
    set_: _Set = None,
    quiet: _Quiet = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, for trying; they listen on loopback only.

    Without FILE.toml the federation of --dir, which was ended or killed, is started again; its run goes on.
    """
    if file is None:
        given = {"--nodes": nodes is not None, "--insecure": insecure, "--set": bool(set_)}
        federation = _again(directory, [option for option, there in given.items() if there])
    else:
        federation = _new(file, set_ or [], directory, 4 if nodes is None else nodes, insecure)
    if not quiet:
        settings = {k: v for k, v in federation.environment().items() if k.startswith("FLWR_")}
        shown = " ".join(f"{k}={shlex.quote(v)}" for k, v in settings.items() if os.environ.get(k) != v)
        there = counted(federation.nodes, "SuperNode")
        typer.echo(f"{directory}: a SuperLink on 127.0.0.1:{federation.port} and {there}; logs in logs/")
        typer.echo(f"run:  {shown} {shlex.join(federation.run_command())}")
        typer.echo(f"end:  fedfi flower down --dir {shlex.quote(str(directory))}")


def _new(file: Path, overrides: list[str], directory: Path, nodes: int, insecure: bool) -> LocalFederation:
    from fedfi.experiment import load_experiment
    from fedfi.flower.appdir import write_app
    from fedfi.flower.local import LocalFederation

    experiment = load_experiment(file, overrides)
    app_ = directory / "app"
    LocalFederation.refuse(directory)
    if app_.exists():
        raise InputError(f"{app_}: exists; name another folder with --dir, or remove {directory}, its run included")
    federation = LocalFederation.create(directory, nodes, insecure=insecure)
    try:
        out = federation.directory / "run"
        write_app(experiment, app_, name=file.stem, options={"out": str(out), "min-clients": 0})
        federation.start()
    except BaseException:
        federation.discard()
        shutil.rmtree(app_, ignore_errors=True)  # so that the same command may be tried again
        raise
    return federation


def _again(directory: Path, given: list[str]) -> LocalFederation:
    from fedfi.flower.local import LocalFederation

    if given:
        raise InputError(
            f"{', '.join(given)}: only a new federation takes this, and needs FILE.toml; without it the one of"
            f" {directory} is started again, as it was"
        )
    federation = LocalFederation.again(directory)
    try:
        federation.start()
    except BaseException:
        federation.down()
        raise
    return federation


@flower.command()
def down(directory: _Dir = _HERE, quiet: _Quiet = False) -> None:
    """End exactly the processes that `up` started, and their children; the folder stays, with the run."""
    from fedfi.flower.local import LocalFederation

    count = LocalFederation.open(directory).down()
    if not quiet:
        typer.echo(f"{directory}: {counted(count, 'process', 'processes')} ended")
        typer.echo(f"again:  fedfi flower up --dir {shlex.quote(str(directory))}")


@flower.command()
def keys(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the keys, new or empty.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address by which nodes reach the SuperLink; may be repeated.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 730,
    quiet: _Quiet = False,
) -> None:
    """Make TLS certificates for the SuperLink and a key pair for each node."""
    from fedfi.flower.keys import LOOPBACK, make_keys

    make_keys(out, host or LOOPBACK, nodes, days)
    if not quiet:
        each = "node-0/ for the node" if nodes == 1 else f"node-0/ to node-{nodes - 1}/ for the nodes"
        typer.echo(f"{out}: server/ for the SuperLink, {each}; keep ca.key off-line")
