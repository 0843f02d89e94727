"""`fedfi doctor`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from fedfi.errors import InputError
from fedfi.federation.record import environment

_OF_DEVELOPERS = ("dev", "docs", "bench")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
_NAME = re.compile(r"[\w.-]+")
_UNSET = "not set: a folder with a sub-folder for each data set; what is in none is looked for on the web"


def doctor(as_json: bool) -> None:
    """Prints what an installation has, and what it lacks."""
    found = examine()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    rows = {name: str(found[name]) for name in ("python", "platform", "cpus")}
    rows |= {"devices": ", ".join(found["devices"])} | found["packages"]
    rows["data embedded"] = ", ".join(found["data"]["embedded"])
    rows["FEDFI_DATA"] = found["data"]["folder"] or found["data"]["problem"] or _UNSET
    rows["data there"] = ", ".join(found["data"]["found"]) or "none that is known by name"
    for extra, content in found["extras"].items():
        missing = [name for name, version in content["packages"].items() if version is None]
        have = ", ".join(f"{n} {v}" for n, v in content["packages"].items() if v is not None)
        lack = f"missing {', '.join(missing)}: {content['install']}" if missing else ""
        rows[f"extra {extra}"] = "; ".join(part for part in (have, lack) if part)
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


def examine() -> dict[str, Any]:
    """Versions, devices, data and extras of this installation."""
    found = environment()
    del found["import_from"]
    return found | {"devices": list(_devices()), "data": _data(), "extras": _extras()}


def _devices() -> Iterator[str]:
    import torch

    yield f"cpu ({torch.get_num_threads()} threads)"
    for number in range(torch.cuda.device_count()):
        yield f"cuda:{number} ({torch.cuda.get_device_name(number)})"
    if torch.backends.mps.is_available():
        yield "mps"


def _data() -> dict[str, Any]:
    from fedfi.data import available, hub
    from fedfi.data.recommendation import available as ratings

    try:
        root, problem = hub.data_root(), None
    except InputError as error:
        root, problem = None, str(error)
    known = available() | ratings()
    return {
        "embedded": [name for name, summary in known.items() if summary.endswith("(embedded)")],
        "folder": None if root is None else str(root),
        "problem": problem,
        "found": [] if root is None else [name for name in known if _is_there(name)],
    }


def _is_there(name: str) -> bool:
    from fedfi.data import hub

    folder = hub.data_folder(name)
    return folder is not None and any(folder.iterdir())


def _extras() -> dict[str, Any]:
    """Each extra of a user's, its packages with their versions (None: missing), and how to get it."""
    found: dict[str, Any] = {}
    for requirement in metadata.requires("fedfi") or []:
        what, _, condition = requirement.partition(";")
        extra, name = _EXTRA.search(condition), _NAME.match(what)
        if extra is None or name is None or extra[1] in _OF_DEVELOPERS:
            continue
        entry = found.setdefault(extra[1], {"packages": {}, "install": f"pip install 'fedfi[{extra[1]}]'"})
        try:
            entry["packages"][name[0]] = metadata.version(name[0])
        except metadata.PackageNotFoundError:
            entry["packages"][name[0]] = None
    return found
