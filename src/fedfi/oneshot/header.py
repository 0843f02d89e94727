"""What an upload says besides its tensors: what inputs and outputs of its model stand for, and a digest of it all.

Labels, columns and the values of categories travel by name, so that two parties that number them differently are told
apart. Statistics of a party's examples do not travel, and of a tokenizer that was trained on its texts only a digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedfi.data.dataset import Dataset
from fedfi.data.fixing import class_names, columns_differ, differing
from fedfi.data.inputs import Inputs, from_record
from fedfi.federation.packet import Packet
from fedfi.models import InputSpec

DIGEST = "digest"


@dataclass(frozen=True, eq=False)
class Meaning:
    """What inputs and outputs of a model stand for.

    Attributes:
        inputs: As in ``inputs.json``, without statistics of examples.
        tokens: Digest of the tokenizer; empty where there is none.
    """

    inputs: Inputs
    tokens: str = ""

    @staticmethod
    def of(data: Dataset) -> Meaning:
        """Of a data set's examples."""
        found = replace(Inputs.of(data), fill=None, mean=None, std=None)
        if data.tokenizer is None:
            return Meaning(found)
        folder = Path(str(data.tokenizer.get("pretrained", "")))
        own = "pretrained" not in data.tokenizer or folder.is_dir()  # no name that means the same elsewhere
        text = json.dumps(dict(data.tokenizer), sort_keys=True).encode()
        if own and "pretrained" in data.tokenizer:
            text = (folder / "tokenizer.json").read_bytes()
        tokens = hashlib.blake2b(text, digest_size=8).hexdigest()
        return Meaning(replace(found, tokenizer=None) if own else found, tokens)

    def scalars(self) -> dict[str, str]:
        """What of it an upload's header holds."""
        return {"inputs": json.dumps(self.inputs.record(), sort_keys=True), "tokens": self.tokens}

    @staticmethod
    def parse(scalars: Mapping[str, Any]) -> Meaning:
        """The inverse of `scalars`.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: If it is none.
        """
        return Meaning(from_record(json.loads(scalars["inputs"])), scalars["tokens"])

    def differs(self, other: Meaning) -> str | None:
        """The first difference from another, such as ``"labels: class 0 is 'sick' and 'well'"``; None: there is none.

        Classes without names are 0, 1, ...; columns are compared where both have names.
        """
        mine, theirs = self.inputs, other.inputs
        if found := differing("labels: class", class_names(mine), class_names(theirs)):
            return found
        if found := columns_differ(mine, theirs):
            return found
        if self.tokens and other.tokens and self.tokens != other.tokens:
            return f"tokenizer: {self.tokens} and {other.tokens}"
        return None

    def nameless(self, other: Meaning) -> bool:
        """Whether columns cannot be compared, since one of the two has no names for them."""
        return self.inputs.spec.kind == "tabular" and (self.inputs.columns is None) != (other.inputs.columns is None)


def sealed(packet: Packet) -> Packet:
    """The packet with a digest of its tensors and scalars."""
    return Packet(packet.tensors, {**packet.scalars, DIGEST: digest_of(packet)}, packet.blobs)


def digest_of(packet: Packet) -> str:
    """A digest of all tensors and all scalars but the digest itself; it finds damage, not malice."""
    found = hashlib.blake2b(digest_size=16)
    found.update(json.dumps({k: packet.scalars[k] for k in sorted(packet.scalars) if k != DIGEST}).encode())
    for name in sorted(packet.tensors):
        tensor = packet.tensors[name]
        found.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def spec_text(spec: InputSpec) -> str:
    """What a model is fed, for messages."""
    more = {"vocabulary": spec.vocabulary, "padding": spec.padding}
    said = "".join(f", {name} {value}" for name, value in more.items() if value is not None)
    return f"{spec.kind} {list(spec.shape)} of {spec.classes} classes{said}"


def spec_json(spec: InputSpec) -> str:
    """The same, for machines."""
    return json.dumps(dataclasses.asdict(spec), sort_keys=True)
