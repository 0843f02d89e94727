"""``python -m fedfi``: the command `fedfi`."""

from __future__ import annotations

import sys

from fedfi.cli import main

if __name__ == "__main__":
    sys.exit(main())
