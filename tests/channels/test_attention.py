"""`SlimAttention` computes what `nn.MultiheadAttention` computes."""

from __future__ import annotations

import pytest
import torch
from tests.channels import nets
from torch import nn

from fedfi.channels.attention import SlimAttention, fitted
from fedfi.errors import InputError

CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 7}, {"bias": False}])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL.float() * -3},
        {"key_padding_mask": PADDED},
        {"attn_mask": nets.rows(8, 5, 5), "key_padding_mask": PADDED.float() * -2},
        {"average_attn_weights": False},
        {"need_weights": False},
    ],
)
def test_equals_the_attention_of_torch(first, sizes, masks):
    whole = nn.MultiheadAttention(8, 4, batch_first=first, **sizes).eval()
    query, key, value = nets.rows(2, 5, 8), nets.rows(2, 5, sizes.get("kdim", 8)), nets.rows(2, 5, sizes.get("vdim", 8))
    if not first:
        query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    slim = SlimAttention(whole)
    assert dict(slim.named_parameters()).keys() == dict(whole.named_parameters()).keys()
    expected, weights = whole(query, key, value, **masks)
    found, own = slim(query, key, value, **masks)
    torch.testing.assert_close(found, expected)
    assert (own is None) == (weights is None)
    if own is not None:
        torch.testing.assert_close(own, weights)


def test_without_a_batch():
    whole = nn.MultiheadAttention(8, 4).eval()
    tokens = nets.rows(5, 8)
    expected, weights = whole(tokens, tokens, tokens)
    found, own = SlimAttention(whole)(tokens, tokens, tokens)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own, weights)


def test_one_that_still_fits_stays():
    whole = nn.MultiheadAttention(8, 4)
    assert fitted(whole) is whole


def test_extra_keys():
    with pytest.raises(InputError, match="add_bias_kv"):
        SlimAttention(nn.MultiheadAttention(8, 4, add_bias_kv=True))
