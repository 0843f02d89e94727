"""Ratings by name, by path, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfi.data import hub
from fedfi.data.interactions import Ratings, from_frame, is_ratings_file, read_ratings
from fedfi.errors import InputError, unknown
from fedfi.importing import import_callable
from fedfi.numerics.counter import below, normal, uniform, words

_SYNTHETIC = (200, 300, 20, 8)
"""Users, items, interactions a user, tastes of the synthetic set."""


@dataclass(frozen=True)
class _Source:
    summary: str
    read: Callable[[str], Ratings]


def available() -> dict[str, str]:
    """Names of ratings data sets with a line on each."""
    return {name: source.summary for name, source in _SOURCES.items()}


def is_ratings(name: str) -> bool:
    """Whether a data set's name or path is known to be one of ratings."""
    return name in _SOURCES or (is_ratings_file(Path(name)) and Path(name).expanduser().exists())


def load_ratings(name: str | Path | Any) -> Ratings:
    """Loads ratings.

    Args:
        name: A name of `available`; the path of a file (csv, tsv, MovieLens's ``::``, RecBole's ``.inter``);
            ``"package.module:function"`` that returns a data frame or `Ratings`; or one of the two.

    Raises:
        InputError: If there are no such ratings, or they do not fit.
    """
    if isinstance(name, Ratings):
        return name
    if not isinstance(name, str | Path):
        if hasattr(name, "columns"):
            return from_frame(name)
        raise InputError(f"ratings are a name, a path or a data frame, got {type(name).__name__}")
    key = str(name)
    if key in _SOURCES:
        return _SOURCES[key].read(key)
    path = Path(key).expanduser()
    if path.exists():
        return read_ratings(path, path.stem)
    if ":" in key:
        found = import_callable(key, "function")()
        return found if isinstance(found, Ratings) else from_frame(found, key)
    if len(path.parts) > 1 or path.suffix:
        raise InputError(f"no data at {key}")
    raise InputError(unknown("ratings data set", key, _SOURCES) + ", or give a path or package.module:function")


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


def _local(remedy: str) -> Callable[[str], Ratings]:
    def read(name: str) -> Ratings:
        folder = hub.data_folder(name)
        if folder is None:
            raise hub.not_found(name, remedy)
        return read_ratings(folder, name)

    return read


_SOURCES = {
    "synthetic_ratings": _Source("Made-up ratings of 200 users and 300 items (embedded)", synthetic),
    "filmtrust": _Source(
        "FilmTrust: 34,889 ratings, 1,227 users, 2,059 films; no real times",
        _local("put ratings.dat (user,item,rating,time) there, as shipped with FedRKG's code"),
    ),
    "amazon_video": _Source(
        "Amazon-Video: 23,181 ratings, 1,372 users, 7,957 videos",
        _local("put ratings.dat (user,item,rating,time) there, as shipped with FedRKG's code"),
    ),
    "ml_100k": _Source(
        "MovieLens-100K: 100,000 ratings, 943 users, 1,682 films",
        _local("put u.data of GroupLens or ml-100k.inter of RecBole there (grouplens.org/datasets/movielens/100k)"),
    ),
    "ml_1m": _Source(
        "MovieLens-1M: 1,000,209 ratings, 6,040 users, 3,706 films",
        _local("put ratings.dat of ml-1m.zip there, alone (grouplens.org/datasets/movielens/1m)"),
    ),
    "lastfm_2k": _Source(
        "Last.fm of HetRec 2011: 92,834 pairs of 1,892 users and artists; no times",
        _local("put user_artists.dat of hetrec2011-lastfm-2k.zip there, alone (grouplens.org/datasets/hetrec-2011)"),
    ),
}
