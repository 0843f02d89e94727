"""Files of `fedfi merge`: what was merged, and what says how to make the network of it again.

| `model` of the file | network |
|---|---|
| ``mlp`` | the parties' network, with `options` |
| ``grown mlp`` | that network made wider; the tensors say how wide it is |
| ``ensemble of mlp`` | several of that network, predictions averaged; ``networks.2.head.bias`` is of the third |

The other entries are `format`, `method`, `options` and `spec` (JSON), and `inputs` where `fedfi.Inputs.read` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfi.errors import InputError, first_line
from fedfi.federation.algorithm import DeploysNetwork
from fedfi.federation.checkpoint import tensors_from_file
from fedfi.federation.evaluation import take_statistics
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.workbench import Benches, deployable
from fedfi.oneshot.described import Network, check_code, check_sizes, options_of, spec_of
from fedfi.oneshot.growing import widened
from fedfi.oneshot.header import spec_json
from fedfi.oneshot.method import Merging
from fedfi.oneshot.server import Server
from fedfi.oneshot.together import Combine, Together
from fedfi.oneshot.uploads import Merged

FORMAT = "fedfi-merged-1"
_ENSEMBLE, _GROWN = "ensemble of ", "grown "


def deployed(method: Merging[Any], merged: Merged, server: Server, seed: int) -> tuple[nn.Module, Tree]:
    """The network that a user deploys, in evaluation mode, and its state dict.

    Args:
        method: What it was merged by.
        merged: What came of it.
        server: The parties' network, and examples.
        seed: Of the method's draws.
    """
    if merged.deployed is None or not isinstance(method, DeploysNetwork):
        return server.loaded(merged.model), deployable(server.task, merged.model)
    module = method.deploy(Packet(merged.deployed), Benches(server.task, seed)).module
    tensors = {n: t.clone() for n, t in module.state_dict().items()}
    if server.examples is not None:
        take_statistics(server.task, module, server.examples)
    return module.eval(), tensors


def described(network: Network, module: nn.Module, merged: Merged) -> dict[str, str]:
    """What a merged file says besides its tensors.

    Args:
        network: The parties' network.
        module: The one that is deployed.
        merged: What it is from.
    """
    kind = ""
    if isinstance(module, Together):
        kind = _ENSEMBLE
    elif any(t.shape != merged.model[n].shape for n, t in (merged.deployed or {}).items()):
        kind = _GROWN
    options = json.dumps(dict(network.options), sort_keys=True)
    return {"format": FORMAT, "model": kind + network.name, "options": options, "spec": spec_json(network.spec)}


def read_merged(path: str | Path, *, model: str | None = None, combine: Combine = "probabilities") -> nn.Module:
    """The network in a file of ``fedfi merge``, whatever it was merged by.

    Args:
        path: The file.
        model: Name of the parties' model where it is code of your own (``package.module:function``), which runs only if
            it is named.
        combine: Of an ensemble, whether class probabilities are averaged, or logits.

    Returns:
        The network in evaluation mode. An ensemble gives logarithms of mean probabilities, or mean logits.

    Raises:
        InputError: If it is no such file, is damaged, or does not fit the network that it names.
    """
    path = Path(path).expanduser()
    about = _about(path)
    kind = next((k for k in (_ENSEMBLE, _GROWN) if about["model"].startswith(k)), "")
    network = Network(
        about["model"].removeprefix(kind), options_of(about["options"], path), spec_of(about["spec"], path)
    )
    check_code(network.name, model, path, "model=")
    tensors = tensors_from_file(path)
    check_sizes(network, sum(t.numel() for t in tensors.values()), path, exactly=False)
    try:
        module = _made(kind, network, tensors, combine)
        module.load_state_dict(tensors)
    except (InputError, RuntimeError, LookupError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: its tensors are none of {about['model']!r} ({first_line(error)})") from error
    return module.eval()


def _made(kind: str, network: Network, tensors: Mapping[str, Tensor], combine: Combine) -> nn.Module:
    if kind == _ENSEMBLE:
        count = len({name.split(".")[1] for name in tensors})
        return Together((network.module() for _ in range(count)), combine)
    module = network.module()
    return widened(module, {name: tuple(t.shape) for name, t in tensors.items()}) if kind == _GROWN else module


def _about(path: Path) -> Mapping[str, str]:
    """The metadata of a merged file."""
    from safetensors import safe_open

    try:
        with safe_open(str(path), "pt") as file:
            about: Mapping[str, str] = file.metadata() or {}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # safetensors has an error of its own, which it exports under varying names
        raise InputError(f"{path}: is not a file of fedfi merge: {first_line(error)}") from error
    if "scalars" in about:
        raise InputError(f"{path}: is an upload of fedfi fisher, expected a file of fedfi merge")
    if about.get("format") != FORMAT:
        raise InputError(
            f"{path}: is not a file of fedfi merge: its format is {about.get('format')!r}, expected {FORMAT!r}"
        )
    if missing := [key for key in ("model", "options", "spec") if key not in about]:
        raise InputError(f"{path}: is damaged: it has no {missing[0]!r}")
    return about
