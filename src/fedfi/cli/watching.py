"""`fedfi watch`."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from fedfi.report.live import HOST, serve


def watch(directories: Sequence[Path], port: int, open_: bool) -> None:
    """Serves the page until it is interrupted.

    Raises:
        InputError: As `fedfi.report.live.serve`.
    """
    with serve(directories, port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address} (Ctrl-C ends it)", flush=True)
        if open_:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
