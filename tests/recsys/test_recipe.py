"""What recommenders refuse of a task before they begin."""

from __future__ import annotations

import types

import pandas as pd
import pytest
import torch

import fedfi
from fedfi import room
from fedfi.recsys.recipe import check_training, fresh_items

FRAME = pd.DataFrame({"user": [u for u in "abc" for _ in range(5)], "item": [0, 1, 2, 3, 4] * 2 + [1, 2, 3, 4, 5]})
DATA = fedfi.leave_one_out(fedfi.load_ratings(FRAME))


def test_a_model_without_an_item_table_is_refused():
    task = fedfi.Task(model=lambda: torch.nn.Embedding(6, 4), data=DATA)
    with pytest.raises(fedfi.InputError, match=r"a parameter 'items' \[6, d\], it has weight \[6, 4\]"):
        fresh_items(task, torch.Generator())


def test_tables_of_all_users_must_fit_in_memory(monkeypatch):
    """Three tables of 6 x 4 numbers of 4 bytes are 288 bytes."""
    task = fedfi.Task(model=lambda: fedfi.build("item_table", DATA.spec, dimension=4), data=DATA)
    monkeypatch.setattr(room, "free_memory", lambda: 287 + 4 * 96)
    fresh_items(task, torch.Generator(), 3)
    with pytest.raises(fedfi.InputError, match="needs more memory than there is: tables of 8 users"):
        fresh_items(task, torch.Generator(), 8)
    monkeypatch.setattr(room, "free_memory", lambda: 95)
    with pytest.raises(fedfi.InputError, match="needs more memory than there is"):
        task.model()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"momentum": 0.9}, r"train.momentum = 0.9: .* \(nearest valid: 0.0\)"),
        ({"optimizer": "adam"}, r'train.optimizer = "adam": .* \(nearest valid: "sgd"\)'),
        ({"steps": 3}, r"train.steps = 3: .* \(nearest valid: epochs = 1\)"),
        ({"schedule": "cosine"}, "train.schedule"),
    ],
)
def test_what_is_not_done_of_a_recipe_names_its_key(options, said):
    with pytest.raises(fedfi.InputError, match=said):
        check_training(fedfi.Training(**options), "why", ("sgd",), decay=False)


def test_training_on_examples_refuses_ratings():
    client = types.SimpleNamespace(id="a", data=DATA.clients["a"])
    with pytest.raises(fedfi.InputError, match="train_locally trains on examples, but client 'a' holds ratings"):
        fedfi.train_locally(client)
