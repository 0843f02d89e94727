"""Ratings by name, by path, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfi.arguments import described, named
from fedfi.data import hub
from fedfi.data.catalog import RATINGS
from fedfi.data.interactions import Ratings, from_frame
from fedfi.data.objects import is_frame
from fedfi.data.ratingcolumns import check_columns
from fedfi.data.ratingsfile import SUFFIXES, is_ratings_file, read_ratings
from fedfi.errors import InputError, SettingError, beside, unknown
from fedfi.importing import import_callable
from fedfi.numerics.counter import below, normal, uniform, words

_SYNTHETIC = (200, 300, 20, 8)
"""Users, items, interactions a user, tastes of the synthetic set."""


def available() -> dict[str, str]:
    """Names of ratings data sets with a line on each."""
    return dict(RATINGS)


def is_ratings(name: str) -> bool:
    """Whether a data set's name or path is known to be one of ratings."""
    return name in _SOURCES or (is_ratings_file(Path(name)) and Path(name).expanduser().exists())


@named
def load_ratings(name: str | Path | Any, *, columns: Mapping[str, str] | None = None) -> Ratings:
    """Loads ratings.

    Args:
        name: A name of `available`; the path of a file (csv, tsv, MovieLens's ``::``, RecBole's ``.inter``, parquet);
            ``"package.module:function"`` that returns a data frame or `Ratings`; or one of the two.
        columns: What columns are called that fedfi does not know by their names, such as ``{"user": "customer",
            "item": "article", "rating": "stars", "time": "bought_at"}``.

    Raises:
        InputError: If there are no such ratings, or they do not fit.
    """
    columns = check_columns(columns)
    if isinstance(name, Ratings):
        return _as_it_is(name, columns, "fedfi.Ratings")
    if not isinstance(name, str | Path):
        if is_frame(name):
            return from_frame(name, columns=columns)
        raise InputError(f"ratings are a name, a path or a data frame, got {described(name)}")
    key = str(name)
    if key in _SOURCES:
        return _as_it_is(_SOURCES[key](key), columns, repr(key))
    path = Path(key).expanduser()
    if path.exists():
        return read_ratings(path, path.stem, columns)
    from fedfi.data.sources import available as examples  # which are no ratings, yet named in the same place

    if key in examples() or key.startswith("medmnist:"):
        names = ", ".join(_SOURCES)
        raise InputError(f"{key!r} holds examples, not ratings: fedfi.load({key!r}) loads them; of ratings are {names}")
    if ":" in key:
        found = import_callable(key, "function")()
        if isinstance(found, Ratings):
            return _as_it_is(found, columns, f"what {key!r} gives")
        if not is_frame(found):
            raise InputError(f"function {key!r} gave {described(found)}, expected a data frame or fedfi.Ratings")
        return from_frame(found, key, columns)
    if len(path.parts) > 1 or path.suffix:
        raise InputError(f"no data at {key}{beside(path, SUFFIXES, where=True)}")
    hint = beside(path, SUFFIXES)
    raise InputError(unknown("ratings data set", key, _SOURCES) + f", or give a path or package.module:function{hint}")


def _as_it_is(ratings: Ratings, columns: Mapping[str, str], what: str) -> Ratings:
    if columns:
        raise SettingError(f"columns: means nothing for {what}, whose columns are known")
    return ratings


def synthetic(name: str) -> Ratings:
    """Made-up ratings, for trying things out without data: users of a few tastes, items of uneven popularity.

    Every user picks items one after the other, by taste and popularity; the same bits everywhere.
    """
    users, items, each, tastes = _SYNTHETIC
    key = np.array([2511], dtype=np.uint64)

    def keys(count: int, purpose: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return np.repeat(words(key, np.array([purpose])), count), np.arange(count)

    popularity = 1.5 * normal(*keys(items, 0))
    taste_of_item = below(words(*keys(items, 1)), np.full(items, tastes))
    taste_of_user = below(words(*keys(users, 2)), np.full(users, tastes))
    liking = 3.0 * (taste_of_item[None] == taste_of_user[:, None]) + popularity
    noise = -np.log(-np.log(uniform(words(*keys(users * items, 3))) + 1e-300)).reshape(users, items)
    chosen = np.argsort(-(liking + noise), axis=1, kind="stable")[:, :each]  # Gumbel top-k: picks without replacement
    order = np.argsort(uniform(words(*keys(users * each, 4))).reshape(users, each), axis=1)
    item = np.take_along_axis(chosen, order, 1).ravel()
    days = np.tile(np.arange(each), users)
    time = (1_600_000_000 + days * 86_400 + np.repeat(np.arange(users), each)).astype(np.float64)
    return Ratings(
        tuple(f"u{i}" for i in range(users)), tuple(f"i{i}" for i in range(items)),
        np.repeat(np.arange(users), each), item.astype(np.int64), time, name,
    )  # fmt: skip


@dataclass(frozen=True)
class _Published:
    """Ratings that are put into a folder by hand, or come from the web.

    Attributes:
        url: A file of ratings, or a zip archive.
        digest: SHA-256 of what is there.
        member: The file of ratings within the archive; empty where it is no archive.
        others: Names of files that hold the same.
    """

    url: str
    digest: str
    member: str = ""
    others: tuple[str, ...] = ()

    def __call__(self, name: str) -> Ratings:
        return replace(self._read(name), notes=())  # which columns they have, and need not, is known

    def _read(self, name: str) -> Ratings:
        file = (self.member or self.url).rpartition("/")[2]
        folder = hub.data_folder(name)
        if folder is not None:
            for path in (folder / f for f in (file, *self.others)):
                if path.is_file():
                    return read_ratings(path, name)
            if any(p.suffix in SUFFIXES for p in folder.iterdir()):
                return read_ratings(folder, name)
        try:
            path = hub.fetch(name, self.url, self.digest)
        except InputError as error:
            names = " or ".join((file, *self.others))
            raise InputError(
                f"{error}; or set {hub.VARIABLE} to a folder and put {names} into {name}/ there"
            ) from error
        return read_ratings(hub.member(name, path, self.member) if self.member else path, name)


_GROUPLENS = "https://files.grouplens.org/datasets"
_OF_FEDRKG = "https://raw.githubusercontent.com/Jaehyung-Lim/fedrkg/bfab01e5c8513a408a5332014c02b47aef1cfb9b/data"

_SOURCES: dict[str, Callable[[str], Ratings]] = {
    "synthetic_ratings": synthetic,
    "filmtrust": _Published(
        f"{_OF_FEDRKG}/filmtrust/ratings.dat", "a2cad0f0adf435cf50484f54a86641f4acbf7128115f7c5bd3cd6f25c69d4585"
    ),
    "amazon_video": _Published(
        f"{_OF_FEDRKG}/video/ratings.dat", "82eb5856b173e8f52a93521b33a402429f81aa92645fdbb7bae6b78316738ba0"
    ),
    "ml_100k": _Published(
        f"{_GROUPLENS}/movielens/ml-100k.zip",
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        "ml-100k/u.data",
        ("ml-100k.inter",),
    ),
    "ml_1m": _Published(
        f"{_GROUPLENS}/movielens/ml-1m.zip",
        "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        "ml-1m/ratings.dat",
        ("ml-1m.inter",),
    ),
    "lastfm_2k": _Published(
        f"{_GROUPLENS}/hetrec2011/hetrec2011-lastfm-2k.zip",
        "6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
        "user_taggedartists-timestamps.dat",
        ("user_artists.dat", "lastfm.inter"),
    ),
}
