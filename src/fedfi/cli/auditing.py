"""`fedfi audit`: what a server could learn from a run."""

from __future__ import annotations

from pathlib import Path

import typer

from fedfi.cli.running import remembered
from fedfi.importing import importing_from


def audit(
    directories: list[Path],
    overrides: list[str],
    out: Path | None,
    rounds: int,
    clients: int,
    iterations: int,
    quiet: bool,
) -> None:
    """Audits runs and writes one table and one page of all."""
    from fedfi.audit.auditing import audit as audited
    from fedfi.audit.auditing import write
    from fedfi.audit.page import markdown

    with importing_from(*remembered(directories), Path.cwd()):
        found = [
            audited(d, overrides=overrides, rounds=rounds, clients=clients, iterations=iterations) for d in directories
        ]
    folder = out or directories[0] / "audit"
    write(found, folder)
    if not quiet:
        typer.echo(markdown(found), nl=False)
        typer.echo(f"pictures: {folder / 'audit.html'}")
