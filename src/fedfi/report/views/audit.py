"""What attacks on the run came to, if `fedfi audit` has been there: its numbers and its pictures."""

from __future__ import annotations

import json
import re
from typing import Any

from fedfi.audit.page import COLUMNS
from fedfi.errors import InputError
from fedfi.report.reading import RunRecord
from fedfi.report.view import Part, Picture

_MOST = 12
_PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")


def audit(run: RunRecord) -> Part:
    """The table and the pictures of `audit/` in the run directory."""
    audits, pictures = _read(run, "audit.json"), _read(run, "pictures.json")
    columns = [column for column in COLUMNS if any(column in a for a in audits)]
    rows = [
        [str(a["name"]), str(a["method"]), *(f"{a[c]:.3f}" if a.get(c) is not None else "" for c in columns)]
        for a in audits
    ]
    groups = []
    for found in pictures[:_MOST]:
        pair = [Picture(found["original"], "the client's example"), Picture(found["reconstruction"], "reconstructed")]
        if all(_PNG.fullmatch(picture.source) for picture in pair):
            groups.append((str(found["caption"]), pair))
    text = "What a server could learn from what it received; left the client's example, right what the attack made."
    head = ["run", "method", *(COLUMNS[column] for column in columns)]
    return Part("Audit", text=text, head=head, rows=rows, pictures=groups)


def _read(run: RunRecord, name: str) -> list[dict[str, Any]]:
    path = run.path / "audit" / name
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InputError(f"{path}: is not what `fedfi audit` writes; run it again, or remove the folder")
    return found
