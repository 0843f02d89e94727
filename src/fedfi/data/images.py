"""Encoded images, idx files and folders of pictures, as uint8 arrays ``[n, C, H, W]``."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedfi.errors import InputError

Array = np.ndarray[Any, np.dtype[np.uint8]]
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


def decode(encoded: Iterable[bytes | Path], name: str) -> Array:
    """Decodes images of one size.

    Args:
        encoded: Contents or paths of image files.
        name: For messages.

    Returns:
        uint8 ``[n, C, H, W]``; one channel if all are grey, else three.

    Raises:
        InputError: If one cannot be decoded, or differs in size from the first.
    """
    from PIL import Image, UnidentifiedImageError

    pictures: list[Any] = []
    for number, item in enumerate(encoded):
        where = str(item) if isinstance(item, Path) else f"image {number}"
        try:
            with Image.open(item if isinstance(item, Path) else io.BytesIO(item)) as picture:
                if picture.mode not in _MODES:
                    raise InputError(f"data {name!r}: {where} has pixels of kind {picture.mode}, not of 8 bits")
                grey = picture.mode in ("L", "1")
                pixels = np.asarray(picture.convert("L" if grey else "RGB"))
        except (UnidentifiedImageError, OSError, TypeError, Image.DecompressionBombError) as error:
            raise InputError(f"data {name!r}: {where} cannot be decoded: {error}") from error
        if pictures and pixels.shape[:2] != pictures[0].shape[:2]:
            raise InputError(
                f"data {name!r}: {where} is {pixels.shape[0]} x {pixels.shape[1]} pixels, the first image "
                f"{pictures[0].shape[0]} x {pictures[0].shape[1]}; make all the same size"
            )
        pictures.append(pixels)
    if not pictures:
        raise InputError(f"data {name!r} has no images")
    if any(pixels.ndim == 3 for pixels in pictures):
        pictures = [np.repeat(p[..., None], 3, axis=2) if p.ndim == 2 else p for p in pictures]
        return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
    return np.stack(pictures)[:, None]


def read_idx(path: Path) -> Array:
    """Reads an idx file of bytes, gzipped or not, as Fashion-MNIST comes.

    Args:
        path: The file; its header is two zeros, 8 for bytes, the number of dimensions and their sizes.

    Returns:
        uint8 of the shape in the header.

    Raises:
        InputError: If it is no such file.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * raw[3]:
        raise InputError(f"{path} is no idx file of bytes")
    start = 4 + 4 * raw[3]
    shape = [int(size) for size in np.frombuffer(raw[4:start], dtype=">i4")]
    if len(raw) != start + int(np.prod(shape)):
        raise InputError(f"{path} holds {len(raw) - start} bytes, its header says {shape}")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


def class_folders(folder: Path) -> list[Path]:
    """Sub-folders that hold pictures, sorted by name."""
    return sorted(
        sub
        for sub in folder.iterdir()
        if sub.is_dir() and any(file.suffix.lower() in SUFFIXES for file in sub.iterdir())
    )


def read_folder(folder: Path, name: str) -> tuple[Array, list[str]]:
    """Pictures of a folder with one sub-folder a class.

    Returns:
        uint8 ``[n, C, H, W]``; the name of each one's folder.
    """
    files = [file for sub in class_folders(folder) for file in sorted(sub.iterdir()) if file.suffix.lower() in SUFFIXES]
    return decode(files, name), [file.parent.name for file in files]
