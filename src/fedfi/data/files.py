"""Data sets from files and folders: csv, parquet, npz, idx, and folders of pictures."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from fedfi.data import arrays, images, lines, tables, text
from fedfi.data.dataset import Dataset
from fedfi.data.partition import whole
from fedfi.data.tables import Fixed, Options
from fedfi.errors import InputError, beside, of_option, unknown
from fedfi.models.shapes import InputSpec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Pair = tuple[Dataset, Dataset | None]
_TABLES = (".csv", ".tsv", ".parquet")
READABLE = (*_TABLES, ".npz")
_TOKENS = ("vocabulary", "length", "tokenizer")
_COLUMNS = ("label", "group", "columns", "categories", "text", *_TOKENS)


@dataclass(frozen=True)
class Rows:
    """A table, apart from a column of encoded images where it has one.

    Attributes:
        frame: The other columns.
        images: Contents of an image file a row, or None.
        missing: Whether numbers may be missing.
    """

    frame: pd.DataFrame
    images: list[bytes] | None = None
    missing: bool = False


def read_path(path: Path, name: str, options: Options) -> Pair:
    """Reads a file or folder of the user's, or of a named data set.

    Args:
        path: A csv, tsv, parquet or npz file, or a folder: with ``train.*`` (and ``test.*``) tables, one
            table or npz file, gzipped idx files, or a sub-folder of pictures a class, perhaps under ``train``
            and ``test``.
        name: For messages and records.
        options: What columns mean, and the path of a test set.

    Raises:
        InputError: If it cannot be understood.
    """
    test = None if options.test is None else Path(options.test).expanduser()
    if test is not None and not test.exists():
        with of_option("test"):
            raise InputError(f"data {name!r}: no test set at {test}{beside(test, READABLE, folders=True, where=True)}")
    if path.is_dir():
        return _read_folder(path, test, name, options)
    if path.suffix in _TABLES:
        return _read_tables([path], [] if test is None else [test], name, options)
    if path.suffix == ".npz":
        _refuse(options, name, "npz file", *_COLUMNS)
        return _read_npz(path, test, name)
    raise InputError(f"data {name!r}: " + unknown("kind of file", path.suffix or path.name, READABLE))


def _read_tables(train: list[Path], test: list[Path], name: str, options: Options) -> Pair:
    for path in test:
        if path.suffix not in _TABLES:
            raise InputError(f"data {name!r}: the test set must be a table like {train[0].name}, got {path}")
    return from_rows(_read_table(train, name), _read_table(test, name) if test else None, name, options)


def from_rows(train: Rows, test: Rows | None, name: str, options: Options) -> Pair:
    """Data sets of images, texts or features, whichever the table and the options say."""
    if train.images is not None:
        return _from_image_rows(train, test, name, options)
    if options.text is not None:
        _refuse(options, name, "table of texts", "columns", "categories")
        return _from_text_rows(train, test, name, options)
    _refuse(options, name, "table without the option 'text'", *_TOKENS)
    return tables.from_frame(train.frame, None if test is None else test.frame, name, options, missing=train.missing)


def from_arrow(table: pa.Table) -> Rows:
    """Rows of an arrow table; its images are structs of ``bytes`` and ``path`` as on the Hugging Face hub."""
    import pyarrow as pa

    for field in table.schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            encoded = table.column(field.name).combine_chunks().field("bytes").to_pylist()
            return Rows(table.drop_columns([field.name]).to_pandas(), encoded)
    return Rows(table.to_pandas())


def _from_image_rows(train: Rows, test: Rows | None, name: str, options: Options) -> Pair:
    _refuse(options, name, "table of images", "columns", "categories", "text", *_TOKENS)
    test_frame = None if test is None else test.frame
    targets, test_targets, names = tables.labels(train.frame, test_frame, options, name)
    data = _images(images.decode(train.images or [], name), targets, names, name)
    data = dataclasses.replace(data, **tables.groups(train.frame, options, name))
    if test is None or test_targets is None:
        return data, None
    if test.images is None:
        raise InputError(f"data {name!r}: the training set has images, the test set none")
    tested = _images(images.decode(test.images, name), test_targets, names, name)
    return data, dataclasses.replace(tested, **tables.groups(test.frame, options, name, test=True))


def _from_text_rows(train: Rows, test: Rows | None, name: str, options: Options) -> Pair:
    test_frame = None if test is None else test.frame
    targets, test_targets, names = tables.labels(train.frame, test_frame, options, name)
    length = whole("length", 64 if options.length is None else options.length, least=1)
    with of_option("text"):
        texts = _texts(train.frame, str(options.text), name)
    if options.fixed is not None:
        tokens = _fixed_tokens(options.fixed, options, name)
        length = options.fixed.length or length
    elif options.tokenizer is None:
        size = whole("vocabulary", 8000 if options.vocabulary is None else options.vocabulary, least=257)
        tokens = text.train_tokenizer(texts, size, length)
    elif options.vocabulary is None:
        with of_option("tokenizer"):
            tokens = text.pretrained_tokenizer(options.tokenizer, length)
    else:
        raise InputError(f"data {name!r}: a pretrained tokenizer brings its own vocabulary, leave 'vocabulary' out")
    spec = InputSpec("text", (length,), len(names), tokens.vocabulary, tokens.padding)
    same: dict[str, Any] = {"spec": spec, "name": name, "label_names": names, "tokenizer": tokens.record}

    data = Dataset(tokens(texts), targets, **same, **tables.groups(train.frame, options, name))
    if test is None or test_targets is None:
        return data, None
    texts, kept = _texts(test.frame, str(options.text), name), tables.groups(test.frame, options, name, test=True)
    return data, Dataset(tokens(texts), test_targets, **same, **kept)


def _fixed_tokens(fixed: Fixed, options: Options, name: str) -> text.Tokens:
    """What makes the token ids that inputs fix."""
    for option in _TOKENS:
        if getattr(options, option) is not None and (option != "tokenizer" or fixed.tokenizer is not None):
            with of_option(option):
                raise InputError(f"data {name!r}: the inputs fix the token ids: leave the option {option!r} out")
    length = 64 if fixed.length is None else fixed.length
    if fixed.tokenizer is not None:
        return text.recorded_tokenizer(fixed.tokenizer, length)
    if options.tokenizer is not None:
        return text.pretrained_tokenizer(options.tokenizer, length)
    raise InputError(
        f"data {name!r}: the inputs hold no tokenizer, as those of uploads: take the inputs.json of whoever trained it,"
        " or name a pretrained one by the option 'tokenizer'"
    )


def _texts(frame: pd.DataFrame, key: str, name: str) -> list[str]:
    values = tables.column(frame, key, name)
    if said := lines.missing(values, f"in column {key!r}", values.isna() | (values == "")):
        raise InputError(f"data {name!r}: {said}")
    return [str(value) for value in values.tolist()]


def _read_table(paths: list[Path], name: str) -> Rows:
    """Reads one table, perhaps in several files of one kind."""
    if paths[0].suffix != ".parquet":
        return Rows(lines.read_csv(paths, "\t" if paths[0].suffix == ".tsv" else ",", name), missing=True)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return from_arrow(pa.concat_tables([pq.read_table(path) for path in paths]))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InputError(f"data {name!r}: {paths[0]} cannot be read: {error}") from error


def read_frame(path: Path, name: str) -> pd.DataFrame:
    """The columns of a csv, tsv or parquet file.

    Raises:
        InputError: If there is none, or it cannot be read.
    """
    if not path.is_file():
        raise InputError(f"no file at {path}{beside(path, _TABLES, where=True)}")
    if path.suffix not in _TABLES:
        raise InputError(f"data {name!r}: " + unknown("kind of file", path.suffix or path.name, _TABLES))
    return _read_table([path], name).frame


def _read_npz(path: Path, test: Path | None, name: str) -> Pair:
    data, official = arrays.from_arrays(_npz(path, name), name)
    if test is None:
        return data, official
    if official is not None:
        raise InputError(f"data {name!r}: {path.name} has a test set of its own, leave the option 'test' out")
    other = _npz(test, name)
    keys = {key: f"test_{key}" for key in ("x", "y", "groups")}
    return arrays.from_arrays(_npz(path, name) | {keys.get(key, key): other[key] for key in other}, name)


def _npz(path: Path, name: str) -> dict[str, arrays.Array]:
    try:
        with path.open("rb") as file:  # which numpy leaves open where the archive is damaged
            if not file.read(6).startswith((b"PK", b"\x93NUMPY")):
                raise InputError(f"data {name!r}: {path} cannot be read: it is no npz file, whatever its name")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, NpzFile):
                raise InputError(f"data {name!r}: {path} is a single array (npy), expected an npz file of several")
            return {key: loaded[key] for key in loaded.files}
    except InputError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"data {name!r}: {path} cannot be read: {error}") from error


def _read_folder(folder: Path, test: Path | None, name: str, options: Options) -> Pair:
    for suffix in _TABLES:
        parts = [sorted(folder.glob(f"{part}*{suffix}")) for part in ("train", "test")]
        if parts[0]:
            return _read_tables(parts[0], parts[1] if test is None else [test], name, options)
    idx = [_idx(folder, part) for part in ("train", "t10k")]
    if idx[0] is not None:
        _refuse(options, name, "folder of idx files", *_COLUMNS, "test")
        keys = (("train_images", "train_labels"), ("test_images", "test_labels"))
        found: dict[str, Path] = {}
        for pair, files in zip(keys, idx, strict=True):
            found.update(zip(pair, files or (), strict=False))
        return arrays.from_arrays({key: images.read_idx(file) for key, file in found.items()}, name)
    single = sorted(file for file in folder.iterdir() if file.suffix in READABLE)
    if len(single) == 1:
        return read_path(single[0], name, options)
    if single:
        names = ", ".join(file.name for file in single[:4])
        raise InputError(
            f"data {name!r}: {folder} has {len(single)} files ({names}); name one, or call them train and test"
        )
    return _read_pictures(folder, test, name, options)


def _idx(folder: Path, part: str) -> tuple[Path, Path] | None:
    found = [sorted(folder.glob(f"{part}-{kind}*")) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    return (found[0][0], found[1][0]) if all(found) else None


def _read_pictures(folder: Path, test: Path | None, name: str, options: Options) -> Pair:
    _refuse(options, name, "folder of images", *_COLUMNS)
    inner = {part: folder / part for part in ("train", "test")}
    if inner["train"].is_dir() and images.class_folders(inner["train"]):
        folder, official = inner["train"], inner["test"] if inner["test"].is_dir() else None
        test = official if test is None else test
    if not images.class_folders(folder):
        raise InputError(
            f"data {name!r}: {folder} holds neither a table ({', '.join(READABLE)}) nor a sub-folder of "
            "images for each class"
        )
    pixels, labels = images.read_folder(folder, name)
    other, tests = (None, None) if test is None else images.read_folder(test, name)
    targets, tested, names = arrays.encode_both(labels, tests, name)
    data = _images(pixels, targets, names, name)
    return data, None if other is None or tested is None else _images(other, tested, names, name)


def _images(pixels: images.Array, targets: torch.Tensor, names: tuple[str, ...], name: str) -> Dataset:
    return arrays.from_inputs(pixels, targets, names, name)


def _refuse(options: Options, name: str, what: str, *keys: str) -> None:
    for key in keys:
        if getattr(options, key) is not None:
            with of_option(key):
                raise InputError(f"data {name!r} is a {what}: the option {key!r} means nothing there")
