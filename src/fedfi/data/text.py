"""Texts as token ids; the one file that imports tokenizers and transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedfi.errors import InputError

Encode = Callable[[Sequence[str]], torch.Tensor]
_PAD = "[PAD]"


def train_tokenizer(texts: Sequence[str], vocabulary: int, length: int) -> tuple[Encode, int, int]:
    """A byte-level BPE tokenizer learnt from texts; the same for the same texts.

    Args:
        texts: Training texts only.
        vocabulary: Most token ids, at least 257: every byte and the padding.
        length: Token ids an example; longer texts are cut, shorter ones padded.

    Returns:
        A function from texts to int32 ``[n, length]``, the number of token ids, and the id that pads.

    Raises:
        InputError: If the extra is not installed or the vocabulary too small.
    """
    if vocabulary < 257:
        raise InputError(f"vocabulary must be at least 257 (every byte and the padding), got {vocabulary}")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise InputError("text needs the package tokenizers: pip install 'fedfi[text]'") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    pad = 0  # the first special token
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=pad, pad_token=_PAD)

    def encode(batch: Sequence[str]) -> torch.Tensor:
        return _tensor([item.ids for item in tokenizer.encode_batch(list(batch))])

    return encode, int(tokenizer.get_vocab_size()), pad


def pretrained_tokenizer(name: str, length: int) -> tuple[Encode, int, int]:
    """A pretrained tokenizer by name or folder; otherwise as `train_tokenizer`."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise InputError("a pretrained tokenizer needs transformers: pip install 'fedfi[text]'") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer {name!r} cannot be loaded: {error}") from error
    if tokenizer.pad_token_id is None:
        raise InputError(f"tokenizer {name!r} has no padding token")

    def encode(batch: Sequence[str]) -> torch.Tensor:
        encoded = tokenizer(list(batch), max_length=length, truncation=True, padding="max_length")
        return _tensor(encoded["input_ids"])

    return encode, len(tokenizer), int(tokenizer.pad_token_id)


def _tensor(ids: list[list[int]]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int32)
