"""RoBERTa for classifying texts (Liu et al., 2019), pretrained or from scratch.

Transformers is imported when a model is made, not before. Two choices let per-example gradients be vectorised
(`torch.func.vmap`): attention is the `eager` one, as the fused kernel has no batching rule, and the mask is
handed over ready-made, as the library's own branches on its values.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from fedfi.errors import InputError
from fedfi.models.shapes import Dropout, InputSpec, Units


def roberta(
    spec: InputSpec,
    *,
    checkpoint: str | None = None,
    layers: Units = 4,
    hidden: Units = 128,
    heads: Units = 4,
    intermediate: Units = 512,
    dropout: Dropout = 0.1,
) -> nn.Module:
    """RoBERTa with a classification head, small and from scratch or from a pretrained checkpoint.

    Args:
        spec: Text with a vocabulary and a padding id; token ids ``[batch, tokens]``, logits
            ``[batch, classes]``. The head reads the first token.
        checkpoint: A folder, or a name on the Hugging Face hub, with a RoBERTa in safetensors; sizes are its
            own.
        layers: Number of encoder layers.
        hidden: Size of a token's vector, a multiple of `heads`.
        heads: Number of attention heads.
        intermediate: Hidden size of the feed-forward layers.
        dropout: Probability of dropping a hidden value or an attention weight, in [0, 1).

    Raises:
        InputError: If transformers is not installed, the data are not such text, an option is out of range or
            given along with a checkpoint, or the checkpoint cannot be loaded or does not fit the data.
    """
    length, vocabulary, padding = _text(spec)
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": intermediate}
    for name, value in sizes.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if hidden % heads:
        raise InputError(f"hidden must be a multiple of heads = {heads}, got {hidden}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be in [0, 1), got {dropout}")
    try:
        import transformers
    except ImportError as error:
        raise InputError("model 'roberta' needs transformers: pip install 'fedfi[text]'") from error
    shared: dict[str, Any] = {
        "num_labels": spec.classes,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "classifier_dropout": dropout,
        "attn_implementation": "eager",
    }
    if checkpoint is not None:
        defaults = inspect.signature(roberta).parameters
        given = [name for name, value in sizes.items() if value != defaults[name].default]
        if given:
            raise InputError(f"model 'roberta': {given[0]} is the checkpoint's own; give one or the other")
        return RobertaClassifier(_pretrained(transformers, checkpoint, spec, shared), padding)
    config = transformers.RobertaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=_positions(length, padding),
        type_vocab_size=1,
        pad_token_id=padding,
        bos_token_id=None,
        eos_token_id=None,
        **shared,
    )
    return RobertaClassifier(transformers.RobertaForSequenceClassification(config), padding)


class RobertaClassifier(nn.Module):
    """Token ids in, logits out; padding is not attended to.

    Args:
        network: A RobertaForSequenceClassification.
        padding: The id that pads short texts.
    """

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network = network
        self.padding = padding

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``[batch, classes]`` of token ids ``[batch, tokens]``, of any integer type."""
        dtype = next(self.network.parameters()).dtype
        # The lowest number, not minus infinity: an empty text then attends to its padding and stays finite.
        mask = torch.zeros(ids.shape, dtype=dtype, device=ids.device)
        mask = mask.masked_fill(ids == self.padding, torch.finfo(dtype).min)
        logits: Tensor = self.network(input_ids=ids, attention_mask=mask[:, None, None, :]).logits
        return logits

    def selection_pools(self) -> list[list[str]]:
        """FIARSE's three pools: position embeddings, word embeddings, and the encoder's linear layers.

        Layer norms, token-type embeddings and the head are always kept.
        """
        linear = {
            f"{path}.{name}"
            for path, part in self.named_modules()
            if isinstance(part, nn.Linear) and ".encoder." in path
            for name, _ in part.named_parameters(recurse=False)
        }
        names = [name for name, _ in self.named_parameters()]
        return [
            [name for name in names if name.endswith("position_embeddings.weight")],
            [name for name in names if name.endswith("word_embeddings.weight")],
            [name for name in names if name in linear],
        ]


def _text(spec: InputSpec) -> tuple[int, int, int]:
    if spec.kind != "text" or len(spec.shape) != 1:
        raise InputError(f"model 'roberta' needs text (tokens,), got {spec.kind} data of shape {spec.shape}")
    if spec.vocabulary is None or spec.padding is None:
        raise InputError("model 'roberta' needs text with a vocabulary and a padding id")
    if not 0 <= spec.padding < spec.vocabulary:
        raise InputError(f"padding must be an id below the vocabulary, {spec.vocabulary}, got {spec.padding}")
    return spec.shape[0], spec.vocabulary, spec.padding


def _positions(length: int, padding: int) -> int:
    return length + padding + 1  # positions are counted from padding + 1


def _pretrained(transformers: Any, checkpoint: str, spec: InputSpec, shared: dict[str, Any]) -> nn.Module:
    where = f"checkpoint {checkpoint!r}"
    length, vocabulary, padding = _text(spec)
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint)
    except (OSError, ValueError) as error:
        raise InputError(f"{where} cannot be loaded: {error}") from error
    if config.model_type != "roberta":
        raise InputError(f"{where} is a {config.model_type!r}, not a 'roberta'")
    if config.pad_token_id != padding or config.vocab_size < vocabulary:
        raise InputError(
            f"{where} has {config.vocab_size} token ids and pads with {config.pad_token_id}, but the data "
            f"have {vocabulary} and pad with {padding}; tokenise with the checkpoint's own tokenizer"
        )
    if config.max_position_embeddings < _positions(length, padding):
        most = config.max_position_embeddings - padding - 1
        raise InputError(f"{where} takes at most {most} tokens, but the data have {length}")
    try:
        network, info = transformers.RobertaForSequenceClassification.from_pretrained(
            checkpoint, use_safetensors=True, output_loading_info=True, **shared
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{where} cannot be loaded: {error}") from error
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("classifier."))
    if missing:
        raise InputError(f"{where} lacks {len(missing)} of the model's tensors, such as {missing[0]!r}")
    model: nn.Module = network
    return model.float().train()  # checkpoints may be half precision, and come in evaluation mode
