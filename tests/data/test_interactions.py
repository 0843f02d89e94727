"""Ratings from files and frames, and their chronological split."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas as pd
import pytest

from fedfi.data.interactions import from_frame, leave_one_out, read_ratings
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
        ({"user": [1, None], "item": [1, 2]}, "1 values are missing in 'user'"),
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


def test_a_missing_set_says_where_to_put_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"ml_1m.*put ratings.dat of ml-1m.zip there"):
        load_ratings("ml_1m")
