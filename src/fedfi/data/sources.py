"""Data sets by name, by path, or by a function of the user's.

A named data set is embedded in scikit-learn, or looked for in the folder that the environment variable
``FEDFI_DATA`` names, then on the Hugging Face hub or in its cache.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfi.arguments import described, named
from fedfi.data import arrays, files, fixing, hub, objects, tables
from fedfi.data.catalog import RATINGS
from fedfi.data.dataset import Dataset
from fedfi.data.inputs import Inputs
from fedfi.data.tables import Options
from fedfi.errors import InputError, beside, of_option, unknown
from fedfi.importing import call, import_callable

Pair = tuple[Dataset, Dataset | None]
_TABLE_OPTIONS = ("label", "group", "columns", "categories")
_TEXT_OPTIONS = ("vocabulary", "length", "tokenizer")
_RETURN_GROUPS = (
    '; natural ids come with its arrays, under the name \'groups\': {"x": ..., "y": ..., "groups": ...}, one an example'
)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Source:
    summary: str
    read: Callable[[str, Options], Pair]
    accepts: tuple[str, ...] = ()
    images: bool = True


@named
def load(
    name: str | Path | Mapping[str, Any] | Dataset | tuple[Any, Any] | list[Any] | Any,
    *,
    label: str | None = None,
    group: str | None = None,
    columns: list[str] | tuple[str, ...] | None = None,
    categories: list[str] | tuple[str, ...] | None = None,
    text: str | None = None,
    test: str | Path | None = None,
    vocabulary: int | None = None,
    length: int | None = None,
    tokenizer: str | None = None,
    augment: list[str] | tuple[str, ...] | None = None,
    inputs: Inputs | str | Path | None = None,
) -> Pair:
    """Loads a data set.

    Labels of any kind become classes in sorted order, kept in `Dataset.label_names`. Nothing is normalised
    yet: `fedfi.data.federate` fits that to the clients' training examples.

    Args:
        name: A name of `available`; ``"medmnist:pathmnist"`` and the like; a path (csv, tsv, parquet, npz, a
            folder of tables or of pictures); ``"package.module:function"`` that returns what follows; a
            mapping of arrays (`fedfi.data.arrays.from_arrays`); arrays, tensors or lists ``(x, y)``, or
            ``((x, y), (test_x, test_y))``; a data frame; a data set of torch whose examples are pairs
            ``(x, y)``, which is read once, transforms and all; a `Dataset`; or two of one of the last three, the
            second for the test, perhaps None.
        label: Column of the labels.
        group: Column of natural ids, for the partition ``natural``.
        columns: Columns to learn from; default all that are left.
        categories: Columns whose values are categories although they look like numbers, all or most of them.
        text: Column of texts, which become token ids.
        test: Path of the test set.
        vocabulary: Token ids of the byte-level BPE tokenizer trained on the training texts (default 8000).
            Without a test set it sees the texts, though never the labels, of examples held out later.
        length: Token ids an example (default 64).
        tokenizer: Name or folder of a pretrained tokenizer instead.
        augment: Random transforms of training batches of images: "crop", "flip".
        inputs: What fixes columns, categories, token ids and classes, whatever these data have of them: a
            `fedfi.Inputs`, a file that `fedfi.Inputs.read` reads, or an upload of ``fedfi fisher``. A category or label
            that it does not know is an error, other columns are left out. A normalisation that it has becomes the data
            set's (`Dataset.mean`); `federate` and `Dataset.fitted` compute their own.

    Returns:
        The training set and the official test set, or None where there is none.

    Raises:
        InputError: If there is no such data, or it does not fit.
    """
    options = Options(
        label=label,
        group=group,
        columns=None if columns is None else tuple(columns),
        categories=None if categories is None else tuple(categories),
        text=text,
        test=None if test is None else str(test),
        vocabulary=vocabulary,
        length=length,
        tokenizer=tokenizer,
        augment=None if augment is None else tuple(augment),
    )
    if inputs is not None:
        known = fixing.given(inputs)
        with arrays.one_class_will_do():
            train, tested = _read(name, dataclasses.replace(options, fixed=fixing.fixed(known)))
        pair = fixing.conformed(train, known), None if tested is None else fixing.conformed(tested, known)
    else:
        pair = _read(name, options)
    if options.augment is None:
        return pair
    return dataclasses.replace(pair[0], augment=options.augment), pair[1]


def available() -> dict[str, str]:
    """Names of data sets with a line on each."""
    return {name: source.summary for name, source in _SOURCES.items()} | {
        "medmnist:NAME": "Any MedMNIST set with one label an image, such as medmnist:pathmnist"
    }


def accepted(name: str) -> tuple[str, ...]:
    """The options of `load` that mean something for a data set of `available`."""
    source = _SOURCES.get(name)
    if source is None:  # any of MedMNIST
        return ("augment",)
    return (*source.accepts, *(("augment",) if source.images else ()))


def _read(name: Any, options: Options) -> Pair:
    if objects.takes(name):
        return objects.given(name, "load", "arrays", options, functools.partial(_accept, options, "given data"))
    if not isinstance(name, str | Path):
        raise InputError(f"a data set is a name, a path, {objects.FORMS}; got {described(name)}")
    key = str(name)
    if key in _SOURCES:
        source = _SOURCES[key]
        _accept(options, f"data {key!r}", source.accepts)
        return source.read(key, options)
    if key.startswith("medmnist:"):
        _accept(options, f"data {key!r}", ())
        return _medmnist(key, options)
    path = Path(key).expanduser()
    if path.exists():
        return files.read_path(path, path.stem, options)
    if _FUNCTION.fullmatch(key):
        return _call(key, options)
    if isinstance(name, Path) or len(path.parts) > 1 or path.suffix:
        raise InputError(f"no data at {key}{beside(path, files.READABLE, folders=True, where=True)}")
    if key in RATINGS:
        raise InputError(f"{key!r} holds ratings, not examples: fedfi.load_ratings({key!r}) loads them")
    names = available() | RATINGS
    raise InputError(
        unknown("data set", key, names, "fedfi list datasets")
        + f", or give a path or package.module:function{beside(path, files.READABLE)}"
    )


def _accept(options: Options, what: str, accepted: tuple[str, ...]) -> None:
    for field in dataclasses.fields(options):
        if getattr(options, field.name) is not None and field.name not in (*accepted, "augment", "fixed"):
            allowed = f"takes only {', '.join(accepted)}" if accepted else "takes none"
            hint = _RETURN_GROUPS if field.name == "group" and what.startswith(("function", "given")) else ""
            with of_option(field.name):
                raise InputError(f"{what}: unknown option {field.name!r} ({allowed}){hint}")


def _call(key: str, options: Options) -> Pair:
    what = f"function {key!r}"
    value = call(import_callable(key, "function"), what)
    return objects.given(value, what, key.rpartition(":")[2], options, functools.partial(_accept, options, what))


def _digits(name: str, options: Options) -> Pair:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # 0 .. 16 there; 0 .. 255 here, as for all images.
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    return arrays.from_arrays({"x": pixels, "y": bunch.target}, name)


def _breast_cancer(name: str, options: Options) -> Pair:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    data, _ = arrays.from_arrays({"x": bunch.data, "y": bunch.target}, name)
    data = dataclasses.replace(
        data,
        feature_names=tuple(map(str, bunch.feature_names)),
        label_names=tuple(map(str, bunch.target_names)),
    )
    return data, None


def _files_or_hub(repository: str, config: str | None = None) -> Callable[[str, Options], Pair]:
    def read(name: str, options: Options) -> Pair:
        folder = hub.data_folder(name)
        if folder is not None:
            return files.read_path(folder, name, options)
        train, test = hub.download(repository, config, name)
        return files.from_rows(files.from_arrow(train), files.from_arrow(test), name, options)

    return read


def _ag_news(name: str, options: Options) -> Pair:
    folder = hub.data_folder(name)
    if folder is not None:
        return files.read_path(folder, name, dataclasses.replace(options, text="content"))
    train, test = hub.download("fancyzhx/ag_news", None, name)
    options = dataclasses.replace(options, text="text")
    return files.from_rows(files.from_arrow(train), files.from_arrow(test), name, options)


def _heart_disease(name: str, options: Options) -> Pair:
    import pandas as pd

    folder = hub.data_folder(name)
    if folder is None:
        raise hub.not_found(name, "put the UCI heart disease table there as a csv file with its column 'dataset'")
    found = sorted(folder.glob("*.csv"))
    if len(found) != 1:
        raise InputError(f"data {name!r}: expected one csv file in {folder}, found {len(found)}")
    frame = pd.read_csv(found[0]).drop(columns="id", errors="ignore")
    for measured in ("chol", "trestbps"):  # nobody alive has 0: hospitals wrote that where nothing was measured
        if measured in frame.columns:
            frame[measured] = frame[measured].where(frame[measured] > 0)
    if options.label is None:
        frame["label"] = (tables.column(frame, "num", name) > 0).astype(int)
        frame = frame.drop(columns="num")
    options = dataclasses.replace(options, group=options.group or "dataset")
    return tables.from_frame(frame, None, name, options, missing=True)


def _medmnist(name: str, options: Options) -> Pair:
    short = name.removeprefix("medmnist:")
    plain = short.replace("_", "")
    path = hub.medmnist_file(plain)
    if path is None:
        raise hub.not_found(name, f"put {plain}.npz of MedMNIST there")
    return files.read_path(path, short, options)


_SOURCES = {
    "digits": _Source("1,797 handwritten digits, 8 x 8 grey, 10 classes (embedded)", _digits),
    "breast_cancer": _Source("569 tumours, 30 numbers, 2 classes (embedded)", _breast_cancer, images=False),
    "cifar10": _Source("60,000 photographs, 32 x 32 colour, 10 classes", _files_or_hub("uoft-cs/cifar10")),
    "cifar100": _Source(
        "60,000 photographs, 32 x 32 colour, 100 classes", _files_or_hub("uoft-cs/cifar100"), ("label",)
    ),
    "svhn": _Source(
        "99,289 house numbers, 32 x 32 colour, 10 classes",
        _files_or_hub("ufldl-stanford/svhn", "cropped_digits"),
    ),
    "cinic10": _Source("180,000 photographs, 32 x 32 colour, 10 classes", _files_or_hub("flwrlabs/cinic10")),
    "fashion_mnist": _Source(
        "70,000 pieces of clothing, 28 x 28 grey, 10 classes",
        _files_or_hub("zalando-datasets/fashion_mnist"),
    ),
    "ag_news": _Source("News in 4 classes, as token ids", _ag_news, _TEXT_OPTIONS, images=False),
    "heart_disease": _Source(
        "920 patients of four hospitals (column 'dataset'), 2 classes, values missing",
        _heart_disease,
        _TABLE_OPTIONS,
        images=False,
    ),
    "pneumonia_mnist": _Source("Chest X-rays, 28 x 28 grey, 2 classes", _medmnist),
}
