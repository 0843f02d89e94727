"""Where named data sets are found: the folder of ``FEDFI_DATA``, then the Hugging Face hub, or a file on the web.

What comes from the web is checked against a digest and kept in the user's cache, `~/.cache/fedfi`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfi.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "FEDFI_DATA"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_TIMEOUT = 30.0
_CHUNK = 1 << 20


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


def cache_folder(name: str) -> Path:
    """Where files of a data set are kept that came from the web."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "fedfi" / name


def fetch(name: str, url: str, digest: str) -> Path:
    """A file of a data set, downloaded at the first time.

    It is looked for in the set's folder of ``FEDFI_DATA``, then in the cache.

    Args:
        name: The data set.
        url: Where it is.
        digest: Its SHA-256.

    Raises:
        InputError: If it cannot be had, or is another than expected.
    """
    folder, file = data_folder(name), url.rpartition("/")[2]
    kept = cache_folder(name) / file
    for path in ([] if folder is None else [folder / file]) + [kept]:
        if path.is_file():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found != digest:
                raise InputError(f"data {name!r}: {path} has SHA-256 {found}, expected {digest}; remove it")
            return path
    aside, sum_ = kept.with_name(f".{file}.part"), hashlib.sha256()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as source, aside.open("wb") as target:
            while piece := source.read(_CHUNK):
                sum_.update(piece)
                target.write(piece)
    except (OSError, http.client.HTTPException) as error:
        aside.unlink(missing_ok=True)
        raise InputError(f"data {name!r}: {url} cannot be downloaded to {kept.parent} ({error})") from error
    if sum_.hexdigest() != digest:
        aside.unlink()
        raise InputError(f"data {name!r}: {url} has SHA-256 {sum_.hexdigest()}, expected {digest}")
    aside.replace(kept)
    return kept


def member(name: str, archive: Path, path: str) -> Path:
    """A file of a zip archive, unpacked into the cache.

    Raises:
        InputError: If it is not in the archive, or cannot be unpacked.
    """
    import zipfile

    target = cache_folder(name) / path.rpartition("/")[2]
    aside = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive) as content:
            aside.write_bytes(content.read(path))
        aside.replace(target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"data {name!r}: {path} cannot be unpacked from {archive}: {error}") from error
    return target


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
