"""``python -m fedfi`` is the command `fedfi`."""

from __future__ import annotations

import sys

from fedfi.cli import main

sys.exit(main())
