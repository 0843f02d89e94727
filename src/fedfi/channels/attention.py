"""Multi-head attention whose heads need not fill the embedding, for `nn.MultiheadAttention` with heads left out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfi.errors import InputError


class SlimAttention(nn.Module):
    """Computes what `nn.MultiheadAttention` does, with fewer heads of the same size.

    Parameters have the names that they have there, and `forward` the same arguments and results.

    Args:
        whole: The attention that it stands for, whose parameters, smaller already, it takes over.

    Raises:
        InputError: If `whole` has learned extra keys (``add_bias_kv``) or zero ones (``add_zero_attn``).
    """

    def __init__(self, whole: nn.MultiheadAttention) -> None:
        super().__init__()
        if whole.bias_k is not None or whole.add_zero_attn:
            raise InputError("attention with add_bias_kv or add_zero_attn cannot have fewer heads")
        self.in_proj_weight: Tensor | None
        self.in_proj_bias: Tensor | None
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"):
            self.register_parameter(name, getattr(whole, name))
        self.out_proj: nn.Linear = whole.out_proj
        self.head_dim = whole.head_dim
        self.num_heads = heads(whole)
        self.embed_dim = self.out_proj.out_features
        self.dropout = whole.dropout
        self.batch_first = whole.batch_first
        self._qkv_same_embed_dim = False  # an encoder layer then leaves its fused kernel, which this does not fit
        self.training = whole.training

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See `nn.MultiheadAttention.forward`: ``[tokens, batch, dim]``, or batch first, or without a batch."""
        single = query.dim() == 2
        if single:
            query, key, value = (each.unsqueeze(0) for each in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        asked, known, taken = (
            functional.linear(each, weight, bias).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each, (weight, bias) in zip((query, key, value), self._projections(), strict=True)
        )
        scores = asked @ known.transpose(-1, -2) / math.sqrt(self.head_dim)
        if attn_mask is not None:
            mask = attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, self.num_heads))
            scores = _masked(scores, mask)
        if key_padding_mask is not None:
            scores = _masked(scores, key_padding_mask[:, None, None, :])
        weights = functional.dropout(scores.softmax(-1), self.dropout, self.training)
        made = self.out_proj((weights @ taken).transpose(1, 2).flatten(2))
        if single:
            made, weights = made.squeeze(0), weights.squeeze(0)
        elif not self.batch_first:
            made = made.transpose(0, 1)
        if not need_weights:
            return made, None
        return made, weights.mean(-3) if average_attn_weights else weights

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        joint = self.in_proj_weight
        apart: list[Tensor] = [self._parameters[f"{name}_proj_weight"] for name in "qkv" if joint is None]  # type: ignore[misc]
        weights = apart if joint is None else list(joint.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3))
        return list(zip(weights, biases, strict=True))


def heads(attention: nn.MultiheadAttention) -> int:
    """How many heads an attention's projections hold."""
    joint: Tensor | None = attention.in_proj_weight
    rows = joint.shape[0] // 3 if joint is not None else attention.q_proj_weight.shape[0]
    return rows // int(attention.head_dim)


def fitted(attention: nn.MultiheadAttention) -> nn.Module:
    """The attention with its sizes set, or a `SlimAttention` where its heads no longer fill the embedding."""
    weight = attention.in_proj_weight if attention.in_proj_weight is not None else attention.q_proj_weight
    count, embedding = heads(attention), weight.shape[1]
    if count * attention.head_dim != embedding or attention.out_proj.weight.shape != (embedding, embedding):
        return SlimAttention(attention)
    attention.num_heads, attention.embed_dim = count, embedding
    attention.kdim = embedding if attention.in_proj_weight is not None else attention.k_proj_weight.shape[1]
    attention.vdim = embedding if attention.in_proj_weight is not None else attention.v_proj_weight.shape[1]
    return attention


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return scores.masked_fill(mask, -math.inf)
    return scores + mask
