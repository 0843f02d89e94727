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

from fedfi.data import hub, load, recommendation
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
        changed = dataclasses.replace(source, digest=digest)
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


def written(tmp_path, text, name="r.csv"):
    path = tmp_path / name
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user_id,item_id,rating,timestamp\n1,2,5,9,0\n1,3,5,9,0\n", "line 2 has 5 cells, expected 4"),
        ("user_id,item_id\nu1,i1,5\nu1,i2,4\n", "line 2 has 3 cells, expected 2"),
        ("user_id,item_id,rating,timestamp\n1,2,5,9,\n1,3,5,9,\n", "line 2 has 5 cells, expected 4"),
        ("user_id,item_id,rating\n1,2,5\n1,3\n", "line 3 has 2 cells, expected 3"),
        ("1,2,5\n1,3,5,9\n", "line 2 has 4 cells, expected 3"),
        ("1::2::5\n1::3\n", "line 2 has 2 cells, expected 3"),
        ("user,user,item\n1,1,2\n", "columns 1 and 2 are both called 'user'"),
        ("customer,article,stars,bought_at\na,b,5,9\n", "line 1 is no heading that is known, nor a row.*columns = "),
        ("customer,article\n1,2\n1,3\n", "line 1 is no heading that is known, nor a row.*'customer' is no number"),
        ("customer,article\nu1,i2\nu1,i3\n", "words that occur nowhere else"),
        ("customer,article,a,b,c\n1,2,3,4,5\n", "no name of its first line is known.*columns = "),
        ("customer,item\n1,2\n", r"unknown column 'user'.*columns = \{ user"),
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("user,item,rating\n", "has a heading and no row"),
        ("user;item\n1;2\n", "looks separated by ';'"),
        ("1 2 5\n", "looks separated by spaces"),
        ("user,item\na,caf\u00e9\n".encode("latin-1"), "line 2 is not UTF-8 text.*Latin-1"),
        ("user,item\na,b\n".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8b\x08\x00", "gzip"),
    ],
)
def test_files_that_would_be_misread_are_refused(text, said, tmp_path):
    with pytest.raises(InputError, match=said) as found:
        load_ratings(written(tmp_path, text))
    assert str(found.value).count("data ") == 1


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"user_id","item_id","rating","timestamp"\n"a","x, y",5,3\n"b","z",4,2\n', None),
        ('User,Item,Rating,Timestamp\na,"x, y",5,3\nb,z,4,2\n', None),
        ('User ID,Item-ID,RATING,TIME\na,"x, y",5,3\nb,z,4,2\n', None),
        ("UserID::MovieID::Rating::Timestamp\na::x, y::5::3\nb::z::4::2\n", None),
        (
            'stars,article,bought_at,customer\n5,"x, y",3,a\n4,z,2,b\n',
            {"user": "customer", "item": "article", "rating": "stars", "time": "bought_at"},
        ),
    ],
)
def test_headings_are_recognised_in_any_case_and_by_names_of_ones_own(text, columns, tmp_path):
    found = load_ratings(written(tmp_path, text), columns=columns)
    assert (found.users, found.items, found.time.tolist()) == (("a", "b"), ("x, y", "z"), [3, 2])
    assert found.notes == ()


def test_a_parquet_file_is_read(tmp_path):
    pd.DataFrame({"user": ["a", "b"], "item": ["01", "1"]}).to_parquet(tmp_path / "r.parquet")
    assert load_ratings(tmp_path / "r.parquet").items == ("01", "1")


def test_no_two_ids_become_one(tmp_path):
    text = "user,item\n01,9007199254740993\n1,9007199254740992\n 007,inf\n"
    found = load_ratings(written(tmp_path, text))
    assert (found.users, found.items) == (("007", "01", "1"), ("9007199254740992", "9007199254740993", "inf"))
    assert "users '01' and '1' are two" in found.notes[0]
    assert load_ratings(written(tmp_path, "user,item\n10,1\n9,1\n")).users == ("9", "10")


@pytest.mark.parametrize(
    ("users", "said"),
    [
        ([2.0**53, 2.0**53 + 2], r"too large to tell one from the next \(row 2\)"),
        ([1.0, np.inf], "too large"),
        (np.array([1, "1"], dtype=object), "holds both 1 and '1'"),
        ([["a"], ["b"]], "holds a list a row"),
    ],
)
def test_ids_that_could_not_be_told_apart_are_refused(users, said):
    with pytest.raises(InputError, match=said):
        load_ratings(pd.DataFrame({"user": users, "item": [1, 2]}))


def test_a_frame_with_a_column_twice_is_refused():
    frame = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
    with pytest.raises(InputError, match="columns 2 and 3 are both called 'item'"):
        load_ratings(frame)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"usr": "a"}, r"columns.usr: unknown key 'usr'; did you mean 'user'"),
        ({"user": "itm"}, r"columns.user: unknown column 'itm'; did you mean 'item'"),
        ({"user": "user", "item": "user"}, "user and item are both 'user'"),
        (["user"], "columns: of ratings is a table such as"),
    ],
)
def test_wrong_names_of_columns_are_refused(columns, said):
    with pytest.raises(InputError, match=said):
        load_ratings(pd.DataFrame({"user": [1], "item": [1]}), columns=columns)


def test_what_is_not_read_and_who_is_left_out_is_said():
    """Of four users, one has too few ratings and one none above 0."""
    frame = pd.DataFrame(
        {
            "user": [1] * 5 + [2] * 5 + [3] * 2 + [4],
            "item": [*range(5), *range(5), 0, 1, 5],
            "rating": [1] * 12 + [0],
            "time": range(10**9, 10**9 + 13),
            "label": 1,
        }
    )
    data = leave_one_out(load_ratings(frame), negatives="exclude_train")
    assert data.origin["users_dropped"] == 2
    assert "columns that nothing reads: 'label'" in data.warnings[0]
    assert data.warnings[1].startswith("2 of 4 users are left out: 1 with fewer than 5 interactions")
    assert data.warnings[1].endswith("1 without a rating above 0")


def test_ratings_say_what_loads_them():
    with pytest.raises(InputError, match=r"fedfi.load_ratings\('filmtrust'\) loads them"):
        load("filmtrust")


def test_arguments_of_the_split_are_checked():
    frame = pd.DataFrame({"user": [1, 1], "item": [1, 2]})
    with pytest.raises(InputError, match=r"leave_one_out\(fedfi.load_ratings\(...\)\)"):
        leave_one_out(frame)
    with pytest.raises(InputError, match=r"has 3 interactions.*the most are 2"):
        leave_one_out(load_ratings(frame))
    ratings = load_ratings("synthetic_ratings")
    with pytest.raises(InputError, match=r"min_interactions = 5\.5: must be a whole number"):
        leave_one_out(ratings, min_interactions=5.5)
    with pytest.raises(InputError, match=r"negatives_per_positive = 1\.5: must be a whole number"):
        leave_one_out(ratings, negatives_per_positive=1.5)


@pytest.mark.parametrize("name", ["digits", "medmnist:pathmnist"])
def test_a_set_of_examples_is_told_from_one_that_nobody_knows(name):
    with pytest.raises(InputError, match=f"'{name}' holds examples, not ratings.*synthetic_ratings, filmtrust"):
        load_ratings(name)
