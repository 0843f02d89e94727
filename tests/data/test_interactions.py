"""Ratings from files and frames, and their chronological split."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile

import numpy as np
import pandas as pd
import pytest

from fedfi.data import hub, recommendation
from fedfi.data.interactions import from_frame, leave_one_out
from fedfi.data.ratingsfile import read_ratings
from fedfi.data.recommendation import available, is_ratings, load_ratings
from fedfi.errors import InputError

ROWS = [("a", 10, 5.0, 3), ("a", 11, 4.0, 1), ("b", 10, 3.0, 2), ("a", 12, 1.0, 2), ("b", 13, 0.0, 9)]


@pytest.mark.parametrize(
    ("name", "header", "separator"),
    [
        ("r.csv", "uid,mid,rating,timestamp", ","),
        ("r.csv", "userId,movieId,rating,timestamp", ","),
        ("r.inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float", "\t"),
        ("r.dat", None, "::"),
        ("r.dat", None, ","),
    ],
)
def test_every_format_gives_the_same_ratings(name, header, separator, tmp_path):
    lines = [separator.join(map(str, row)) for row in ROWS]
    (tmp_path / name).write_text("\n".join([header, *lines] if header else lines) + "\n")
    found = read_ratings(tmp_path / name, "r")
    assert found.users == ("a", "b")
    assert found.items == ("10", "11", "12")  # what is rated 0 is no interaction
    assert found.user.tolist() == [0, 0, 1, 0]
    assert found.item.tolist() == [0, 1, 0, 2]
    assert found.time.tolist() == [3, 1, 2, 2]


def test_a_pair_that_occurs_twice_keeps_its_latest():
    frame = pd.DataFrame({"user": [1, 1, 1], "item": [7, 8, 7], "time": [1, 2, 3]})
    found = from_frame(frame)
    assert (found.item.tolist(), found.time.tolist()) == ([1, 0], [2, 3])


def test_the_last_two_are_held_out_and_the_first_of_a_tie_is_the_last():
    frame = pd.DataFrame({"user": 1, "item": [5, 6, 7, 8, 9], "time": [4e8, 9e8, 9e8, 1e8, 2e8]})
    data = leave_one_out(from_frame(frame))
    names = np.array(data.items)
    assert names[data.test].tolist() == ["6"]
    assert names[data.validation].tolist() == ["7"]
    assert names[data.train[0]].tolist() == ["5", "8", "9"]
    assert data.warnings == ("1 of 1 users have their last two items at the same time; the file's order decides",)


def test_users_are_filtered_before_items():
    frame = pd.DataFrame({"user": [1] * 4 + [2] * 3, "item": [1, 2, 3, 4, 1, 5, 6], "time": range(7)})
    data = leave_one_out(from_frame(frame), min_interactions=4)
    assert (data.users, data.items) == (("1",), ("1", "2", "3", "4"))
    assert data.origin["users_dropped"] == 1
    assert "before 1973" in data.warnings[0]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({"usr": [1], "item": [1]}, "unknown column 'user'; did you mean 'usr'?"),
        ({"user": [1, None], "item": [1, 2]}, r"1 value is missing in 'user' \(row 2\)"),
        ({"user": [1], "item": [1], "rating": ["x"]}, "column 'rating' is not all numbers"),
        ({"user": [1], "item": [1], "rating": [0]}, "has no rating above 0"),
    ],
)
def test_bad_tables_are_refused(frame, said):
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        from_frame(pd.DataFrame(frame))


def test_bad_splits_are_refused():
    ratings = load_ratings("synthetic_ratings")
    with pytest.raises(InputError, match=r"min_interactions = 2: must be at least 3 \(nearest valid: 3\)"):
        leave_one_out(ratings, min_interactions=2)
    with pytest.raises(InputError, match=r"min_interactions = 99: no user .* \(nearest valid: 20\)"):
        leave_one_out(ratings, min_interactions=99)
    with pytest.raises(InputError, match="did you mean 'exclude_train'"):
        leave_one_out(ratings, negatives="exclude_trains")
    with pytest.raises(InputError, match="did you mean 'ml_100k'"):
        load_ratings("ml100k")


def test_the_record_says_who_holds_what_and_what_is_doubtful():
    frame = pd.DataFrame({"user": np.repeat([1, 2], 5), "item": [1, 2, 3, 4, 5, 1, 2, 3, 4, 6]})
    record = leave_one_out(from_frame(frame)).split_record()
    json.dumps(record)
    assert record["clients"]["1"]["train"]["size"] == 3
    assert record["negatives"] == {"from": "exclude_train", "per_positive": 4}
    assert record["warnings"] == ["there are no times: the first interaction of a user in the file counts as the last"]


def test_synthetic_ratings_are_the_same_everywhere():
    """A digest of integers, which no platform rounds; the set is embedded."""
    data = leave_one_out(load_ratings("synthetic_ratings"))
    assert (len(data.users), data.warnings) == (200, ())
    assert is_ratings("synthetic_ratings")
    assert not is_ratings("digits")
    assert {"filmtrust", "amazon_video", "ml_100k", "ml_1m", "lastfm_2k"} < set(available())


@pytest.mark.skipif("FEDFI_DATA" not in os.environ, reason="FEDFI_DATA is not set")
@pytest.mark.parametrize(
    ("name", "users", "items", "said"),
    [
        ("filmtrust", 1227, 2059, "times are not real"),
        ("amazon_video", 1372, 7957, "352 of 1372 users"),
        ("ml_100k", 943, 1682, "last two items at the same time"),
    ],
)
def test_known_sets(name, users, items, said):
    data = leave_one_out(load_ratings(name))
    assert (len(data.users), len(data.items)) == (users, items)
    assert said in data.warnings[0]


MOVIELENS = "".join(f"{u}::{i}::{1 + i % 5}::{978300000 + 100 * u + i}\n" for u in (1, 2) for i in range(10, 17))
TAGS = "userID\tartistID\ttagID\ttimestamp\n" + "".join(
    f"{u}\t{i}\t{t}\t{1238536800000 + 1000 * (u * i % 53) + t}\n" for u in (2, 3) for i in range(50, 56) for t in (1, 2)
)


@pytest.fixture
def web(monkeypatch, tmp_path):
    """Archives in place of those of GroupLens, a cache of their own, and what was asked for."""
    monkeypatch.delenv("FEDFI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = []

    def put(name, member, text, spoilt=False):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(member, text)
        source = recommendation._SOURCES[name]
        digest = hashlib.sha256(archive.getvalue()).hexdigest()
        changed = dataclasses.replace(source, read=dataclasses.replace(source.read, digest=digest))
        monkeypatch.setitem(recommendation._SOURCES, name, changed)

        def urlopen(url, timeout):
            asked.append(url)
            return io.BytesIO(archive.getvalue()[: 100 if spoilt else None])

        monkeypatch.setattr(hub.urllib.request, "urlopen", urlopen)

    put.asked = asked
    return put


def test_a_published_set_is_downloaded_checked_and_kept(web):
    web("ml_1m", "ml-1m/ratings.dat", MOVIELENS)
    first, second = load_ratings("ml_1m"), load_ratings("ml_1m")
    assert web.asked == ["https://files.grouplens.org/datasets/movielens/ml-1m.zip"]
    assert (first.users, len(first)) == (("1", "2"), 14) == (second.users, len(second))
    assert first.name == "ml_1m"


def test_a_download_that_is_not_what_it_should_be_is_refused_and_not_kept(web, tmp_path):
    web("ml_1m", "ml-1m/ratings.dat", MOVIELENS, spoilt=True)
    with pytest.raises(InputError, match=r"ml-1m.zip has SHA-256 .*, expected"):
        load_ratings("ml_1m")
    assert list((tmp_path / "cache/fedfi/ml_1m").iterdir()) == []


def test_a_damaged_copy_is_refused(web, tmp_path):
    web("ml_1m", "ml-1m/ratings.dat", MOVIELENS)
    load_ratings("ml_1m")
    (tmp_path / "cache/fedfi/ml_1m/ml-1m.zip").write_bytes(b"no")
    with pytest.raises(InputError, match=r"ml-1m.zip has SHA-256 .*, expected .*; remove it"):
        load_ratings("ml_1m")


def test_an_archive_in_the_folder_of_data_is_taken(web, monkeypatch, tmp_path):
    web("ml_1m", "ml-1m/ratings.dat", MOVIELENS)
    load_ratings("ml_1m")
    (tmp_path / "data/ml_1m").mkdir(parents=True)
    (tmp_path / "cache/fedfi/ml_1m/ml-1m.zip").rename(tmp_path / "data/ml_1m/ml-1m.zip")
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path / "data"))
    assert len(load_ratings("ml_1m")) == 14
    assert len(web.asked) == 1


def test_tags_of_last_fm_are_interactions_at_their_latest_time(web, monkeypatch, tmp_path):
    """Two tags of an artist are one interaction, at the later one's time; the unpacked archive has other files too."""
    web("lastfm_2k", "user_taggedartists-timestamps.dat", TAGS)
    found = load_ratings("lastfm_2k")
    assert (found.users, len(found.items), len(found)) == (("2", "3"), 6, 12)
    assert found.time[0] == 1238536800000 + 1000 * (2 * 50 % 53) + 2
    assert leave_one_out(found).warnings == ()
    folder = tmp_path / "data/lastfm_2k"
    folder.mkdir(parents=True)
    (folder / "user_taggedartists-timestamps.dat").write_text(TAGS)
    (folder / "artists.dat").write_text("id\tname\n1\tA\n")
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path / "data"))
    assert len(load_ratings("lastfm_2k")) == 12
    assert len(web.asked) == 1


def test_a_missing_set_says_where_to_put_it(monkeypatch, tmp_path):
    def nowhere(url, timeout):
        raise hub.urllib.request.URLError("no route")

    monkeypatch.setattr(hub.urllib.request, "urlopen", nowhere)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"'ml_1m'.*no route.*set FEDFI_DATA .* put ratings.dat or ml-1m.inter into"):
        load_ratings("ml_1m")
