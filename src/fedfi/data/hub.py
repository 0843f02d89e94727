"""Where named data sets are found: the folder of ``FEDFI_DATA``, then the Hugging Face hub or its cache."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfi.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "FEDFI_DATA"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def data_root() -> Path | None:
    """The folder that ``FEDFI_DATA`` names, or None where it is not set.

    Raises:
        InputError: If it is no folder.
    """
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    root = Path(value).expanduser()
    if not root.is_dir():
        raise InputError(f"{VARIABLE} is {value}, which is no folder")
    return root


def data_folder(name: str) -> Path | None:
    """The sub-folder of a data set, or None where there is none."""
    root = data_root()
    return root / name if root is not None and (root / name).is_dir() else None


def medmnist_file(plain: str) -> Path | None:
    """The file of a MedMNIST set such as "pathmnist", there or where the package medmnist keeps it."""
    root = data_root()
    spelt = plain.removesuffix("mnist").rstrip("_") + "_mnist"
    folders = [] if root is None else [root / plain, root / spelt, root / "medmnist", root]
    for folder in [*folders, Path.home() / ".medmnist"]:
        if (folder / f"{plain}.npz").is_file():
            return folder / f"{plain}.npz"
    return None


def not_found(name: str, remedy: str) -> InputError:
    """What to say of a data set that is in no folder; `remedy` says what to put there."""
    root = data_root()
    if root is None:
        return InputError(f"data {name!r}: set {VARIABLE} to a folder with a sub-folder {name!r} and {remedy}")
    return InputError(f"data {name!r}: nothing in {root / name} ({VARIABLE}); {remedy}")


def download(repository: str, config: str | None, name: str) -> tuple[pa.Table, pa.Table]:
    """Train and test tables from the Hugging Face hub, or from its cache.

    Raises:
        InputError: If they cannot be had, saying where they were looked for.
    """
    import datasets

    if not _reachable() and not _cached(repository):
        raise _unreachable(repository, name, "no network")
    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        loaded: Any = datasets.load_dataset(repository, config)
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0] or repr(error)
        raise _unreachable(repository, name, why) from error
    finally:
        if bars:
            datasets.enable_progress_bars()
    return loaded["train"].data.table, loaded["test"].data.table


def _unreachable(repository: str, name: str, why: str) -> InputError:
    root = data_root()
    folder = f"{VARIABLE} is not set" if root is None else f"no folder {root / name} ({VARIABLE})"
    return InputError(
        f"data {name!r}: {folder}, and {repository!r} of the Hugging Face hub is neither cached nor "
        f"reachable ({why}); set {VARIABLE} to a folder with a sub-folder {name!r}, or go online once"
    )


def _reachable() -> bool:
    """Whether the hub's name resolves; the hub's own client would retry for half a minute."""
    if any(os.environ.get(proxy) or os.environ.get(proxy.upper()) for proxy in _PROXIES):
        return True
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").split("//")[-1].split("/")[0].split(":")[0]
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _cached(repository: str) -> bool:
    import datasets

    return (Path(datasets.config.HF_DATASETS_CACHE) / repository.replace("/", "___")).is_dir()
