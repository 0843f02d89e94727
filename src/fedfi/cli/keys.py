"""`fedfi keys`: the keys of an encrypted federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedfi.crypto.roster import Roster

keys = typer.Typer(help="Make, hand out and change the keys of an encrypted federation.", no_args_is_help=True)
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder of keys.", show_default=False)]
_Ids = Annotated[str | None, typer.Option(metavar="A,B,...", help="Client ids.", show_default=False)]


@keys.command()
def new(
    folder: _Folder,
    clients: _Ids = None,
    experiment: Annotated[
        Path | None,
        typer.Option("--for", metavar="FILE.toml", help="All clients of an experiment.", show_default=False),
    ] = None,
    parameters: Annotated[str, typer.Option(metavar="SET", help="Parameters of the scheme.")] = "bfv-4096",
) -> None:
    """Make an identity for each client, and a key for them together, wrapped for each.

    Move each file of DIR/members to its client; the server gets DIR/roster.json and nothing else.
    """
    from fedfi.crypto import keys as library
    from fedfi.errors import InputError

    if (clients is None) == (experiment is None):
        raise InputError("fedfi keys new: give either --clients A,B,... or --for FILE.toml")
    if experiment is not None:
        from fedfi.experiment import load_experiment

        loaded = load_experiment(experiment)
        ids = list(loaded.federate(loaded.load()).clients)
    else:
        ids = _split(clients)
    _print(library.new(folder, ids, parameters))


@keys.command()
def wrap(
    folder: _Folder,
    by: Annotated[str, typer.Option(metavar="ID", help="A member that has the key.", show_default=False)],
    client: Annotated[str, typer.Option("--for", metavar="ID", help="Who shall get it.", show_default=False)],
) -> None:
    """Wrap the present key for a member once more."""
    from fedfi.crypto import keys as library

    _print(library.wrap(folder, by, client))


@keys.command()
def show(folder: _Folder) -> None:
    """Show what everybody may know: ids, epoch, members."""
    from fedfi.crypto.roster import Roster

    _print(Roster.read(folder))


@keys.command()
def rotate(folder: _Folder, add: _Ids = None, remove: _Ids = None) -> None:
    """Make the key of the next epoch, for other members if need be."""
    from fedfi.crypto import keys as library

    _print(library.rotate(folder, _split(add), _split(remove)))


def _split(ids: str | None) -> list[str]:
    return [part.strip() for part in (ids or "").split(",") if part.strip()]


def _print(roster: Roster) -> None:
    typer.echo(f"key {roster.key_id}  epoch {roster.epoch}  parameters {roster.parameters.name}")
    for client, public in roster.members.items():
        state = "wrapped" if client in roster.wrapped else "not wrapped"
        typer.echo(f"  {client}  {public.signing.hex()[:16]}  {state}")
