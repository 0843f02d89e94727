"""A Flower app of an experiment: a directory that `flwr build` packs and `flwr run` runs, simulated or deployed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import tomli_w

import fedfi
from fedfi.errors import InputError
from fedfi.experiment import Experiment
from fedfi.federation.record import without_none
from fedfi.flower.options import Options, defaults

FLOWER = "1.42.0"
"""The version of Flower that this is tested with, and the oldest one that will do."""

_NAME = 32  # characters of an app's name that Flower takes; it begins with a letter

_NODES = 4  # in the examples of the README

_CLIENT = '''"""What a node does: see `fedfi.flower.apps`."""

from pathlib import Path

from fedfi.flower.apps import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
'''
_SERVER = '''"""The federation's rounds: see `fedfi.flower.apps`."""

from pathlib import Path

from fedfi.flower.apps import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
'''
_LICENSE = """Licensed under the Apache License, Version 2.0 (the "License"); you may not use this app except in
compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is distributed on an
"AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the License for the
specific language governing permissions and limitations under the License.
"""
_README = """# {name}

{method} on {data}, as a Flower app made by fedfi {version}. The experiment is
`{package}/experiment.toml`; everything that is Flower's affair stands in `pyproject.toml`, `[tool.flwr.app.config]`.

## Simulation

```
pip install 'fedfi[flower]' 'flwr[simulation]>={flower}'
flwr run .
```

Flower tells each simulated node its `partition-id` and `num-partitions`. The experiment has {clients} clients; with
fewer nodes each holds several of them. How many nodes there are is set in Flower's own configuration:
`[superlink.local]`, `options.num-supernodes` (`flwr config list` tells where).

## Deployment

On one machine, for trying: `fedfi flower up {package}/experiment.toml --nodes {nodes}`. On several, of which one is
the server, which all others reach as HOST: every machine needs `pip install 'fedfi[flower]' 'flwr>={flower}'` in an
environment that is activated (Flower's programs start each other by name), and the experiment's data, of which a node
uses its share.

1. Keys, once:

   ```
   fedfi flower keys -o keys --host HOST --nodes {nodes}
   ```

   `keys/server` goes to the server, `keys/node-0` and so on each to the machine of its node and nowhere else;
   `keys/ca.key` is kept off-line.

2. On the server, in the folder where the results shall be:

   ```
   flower-superlink --host 0.0.0.0 --port 8000 --database superlink.db --enable-supernode-auth \
       --ssl-ca-certfile keys/server/ca.crt --ssl-certfile keys/server/server.pem --ssl-keyfile keys/server/server.key \
       --disable-runtime-dependency-installation
   ```

   `superlink.db` has the nodes' registrations, so that a SuperLink that is started again knows them. Whoever reaches
   this port may start apps and register nodes: let a firewall admit the machines of the federation alone.

3. Where this app is, in Flower's configuration (`flwr config list` tells where that is):

   ```
   [superlink.mine]
   address = "HOST:8000"
   root-certificates = "/path/to/keys/server/ca.crt"
   ```

   and each node's public key, once: `flwr supernode register keys/node-0/node.pub mine`, and so on.

4. On the machine of node 0, and with its own number on each other:

   ```
   flower-supernode --superlink HOST:8000 --root-certificates keys/node-0/ca.crt \
       --auth-supernode-private-key keys/node-0/node.key --node-config "partition-id=0 num-partitions={nodes}"
   ```

   Under a service manager, which starts it again when it ends.

5. The experiment:

   | to | do |
   |---|---|
   | run it | `flwr run . mine --stream`; Ctrl-C ends the showing, not the run |
   | see what runs, and its log | `flwr list mine`, `flwr log RUN mine` |
   | stop it | `flwr stop RUN mine` |
   | go on, after that or a crash | `flwr run . mine` again: from its last round, with the same bits |
   | run more rounds | `flwr run . mine --run-config "set='rounds=100'"`, also when it is done |
   | run it anew | `flwr run . mine --run-config "out='runs/another'"` |

   The results are on the server: `{out}`, from where the SuperLink was started (`out` in `[tool.flwr.app.config]`),
   with the files of `fedfi run`: `model.safetensors`, `metrics.jsonl`, `events.jsonl` and so on. There,
   `fedfi report {out} -o report.html` makes a page of them, and `fedfi watch {out}` follows the run while it goes on.
   What clients remember stays on their nodes, in `~/.local/state/fedfi/clients`, or where `memory` of `--node-config`
   says.

Nodes with data of their own: set `data = "package.module:function"`; the function gets the node's `--node-config`
and returns `fedfi.ClientData` by client name. It is used where there is no `partition-id`.
"""


def write_app(
    experiment: Experiment, out: Path, *, name: str, publisher: str = "fedfi", options: dict[str, Any] | None = None
) -> list[Path]:
    """Writes the app.

    Args:
        experiment: What it runs.
        out: A directory, new or empty.
        name: Of the app; its package is named after it.
        publisher: Whose app it is, on Flower Hub.
        options: Entries of `[tool.flwr.app.config]` other than the defaults, with dashes.

    Returns:
        The files.

    Raises:
        InputError: If the directory is not empty, or a name cannot be one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and is not empty; name another directory")
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "experiment"
    name = (name if name[0].isalpha() else f"app-{name}")[:_NAME].strip("-")
    package = name.replace("-", "_") + "_app"  # a plain name might be that of a library
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9-]*", publisher):
        raise InputError(f"--publisher {publisher}: only letters, digits and dashes (nearest valid: 'fedfi')")
    config = defaults(f"runs/{name}") | (options or {})
    Options.of(config)
    settings = experiment.settings
    files = {
        "pyproject.toml": tomli_w.dumps(_project(name, package, publisher, config)),
        "README.md": _README.format(
            name=name,
            package=package,
            method=settings.algorithm["name"],
            data=Path(settings.data.name).name,
            clients=settings.data.clients or "the data's own number of",
            nodes=min(settings.data.clients or _NODES, _NODES),
            out=config["out"],
            version=fedfi.__version__,
            flower=FLOWER,
        ),
        "LICENSE": _LICENSE,
        f"{package}/__init__.py": f'"""{name}: a federation by fedfi."""\n',
        f"{package}/client_app.py": _CLIENT,
        f"{package}/server_app.py": _SERVER,
        f"{package}/experiment.toml": tomli_w.dumps(without_none(experiment.resolved())),
    }
    for path, text in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
    return [out / path for path in files] + _own_modules(experiment, out)


def _project(name: str, package: str, publisher: str, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": "A federation by fedfi",
            "license": {"file": "LICENSE"},
            "requires-python": ">=3.11",
            "dependencies": [f"flwr>={FLOWER}", f"fedfi>={fedfi.__version__}"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": publisher,
                    "fab-format-version": 1,
                    "flwr-version-target": FLOWER,
                    "components": {
                        "serverapp": f"{package}.server_app:app",
                        "clientapp": f"{package}.client_app:app",
                    },
                    "config": config,
                }
            },
        },
    }


def _own_modules(experiment: Experiment, out: Path) -> list[Path]:
    """The user's own modules that the experiment names, from the working directory."""
    s = experiment.settings
    copied = []
    for name in (s.data.name, s.model.name, str(s.algorithm["name"])):
        module = name.partition(":")[0].split(".")[0] if re.fullmatch(r"[\w.]+:\w+", name) else ""
        source = Path.cwd() / f"{module}.py"
        if module and source.is_file() and not (out / source.name).exists():
            shutil.copyfile(source, out / source.name)
            copied.append(out / source.name)
    return copied
