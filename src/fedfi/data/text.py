"""Texts as token ids; the one file that imports tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedfi.errors import InputError

Encode = Callable[[Sequence[str]], torch.Tensor]
_PAD = "[PAD]"
_PADS = ("<pad>", "[PAD]", "<|padding|>")


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
    return _encoder(tokenizer), int(tokenizer.get_vocab_size()), pad


def pretrained_tokenizer(name: str, length: int) -> tuple[Encode, int, int]:
    """A pretrained tokenizer: a folder with a ``tokenizer.json``, or a hub name; otherwise as `train_tokenizer`."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError("text needs the package tokenizers: pip install 'fedfi[text]'") from error
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            tokenizer = Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"tokenizer {name!r} cannot be loaded: {error}") from error
    known = tokenizer.padding or {}
    token = known.get("pad_token") or next((t for t in _PADS if tokenizer.token_to_id(t) is not None), None)
    if token is None:
        raise InputError(f"tokenizer {name!r} has no padding token (looked for {', '.join(_PADS)})")
    found = known["pad_id"] if known else tokenizer.token_to_id(token)
    assert found is not None  # the token is known
    pad = int(found)
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=pad, pad_token=token)
    return _encoder(tokenizer), int(tokenizer.get_vocab_size()), pad


def _encoder(tokenizer: Any) -> Encode:
    def encode(batch: Sequence[str]) -> torch.Tensor:
        return torch.tensor([item.ids for item in tokenizer.encode_batch(list(batch))], dtype=torch.int32)

    return encode
