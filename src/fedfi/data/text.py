"""Texts as token ids; the one file that imports tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedfi.errors import InputError

_PAD = "[PAD]"
_PADS = ("<pad>", "[PAD]", "<|padding|>")


@dataclass(frozen=True)
class Tokens:
    """Makes token ids of texts.

    Attributes:
        tokenizer: Of the package tokenizers; cuts and pads.
        padding: The id that pads.
        record: What makes it again (`recorded_tokenizer`), JSON-able.
    """

    tokenizer: Any
    padding: int
    record: Mapping[str, Any]

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(self.tokenizer.get_vocab_size())

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Token ids of `n` texts, int32 ``[n, length]``."""
        return torch.tensor([item.ids for item in self.tokenizer.encode_batch(list(texts))], dtype=torch.int32)


def train_tokenizer(texts: Sequence[str], vocabulary: int, length: int) -> Tokens:
    """A byte-level BPE tokenizer learnt from texts; the same for the same texts.

    Args:
        texts: Training texts only.
        vocabulary: Most token ids, at least 257: every byte and the padding.
        length: Token ids an example; longer texts are cut, shorter ones padded.

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
    return Tokens(tokenizer, pad, {"trained": json.loads(tokenizer.to_str())})


def recorded_tokenizer(record: Mapping[str, Any], length: int) -> Tokens:
    """The tokenizer of a `Tokens.record`.

    Raises:
        InputError: If the extra is not installed, or it cannot be made or found.
    """
    if "pretrained" in record:
        return pretrained_tokenizer(str(record["pretrained"]), length)
    try:
        tokenizer = _library().from_str(json.dumps(record["trained"]))
        return Tokens(tokenizer, int(tokenizer.padding["pad_id"]), record)
    except InputError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"the tokenizer cannot be read: {error}") from error


def pretrained_tokenizer(name: str, length: int) -> Tokens:
    """A pretrained tokenizer: a folder with a ``tokenizer.json``, or a hub name; otherwise as `train_tokenizer`."""
    library = _library()
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            tokenizer = library.from_file(str(folder / "tokenizer.json"))
        else:
            tokenizer = library.from_pretrained(name)
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
    return Tokens(tokenizer, pad, {"pretrained": str(folder.resolve()) if folder.is_dir() else name})


def _library() -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError("text needs the package tokenizers: pip install 'fedfi[text]'") from error
    return Tokenizer
