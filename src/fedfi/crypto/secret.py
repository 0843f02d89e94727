"""What clients alone hold: the secret key, and what it can do.

The server's side (`summing`) does not import this file; a test holds that.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
from typing import Any

import torch
from torch import Tensor

from fedfi.crypto import seal
from fedfi.crypto.parameters import Parameters
from fedfi.errors import InputError

SEED_BYTES = 64


class SecretKey:
    """A homomorphic secret key, determined by 64 secret bytes, and the keyed check values that go with it.

    Args:
        parameters: The scheme's.
        seed: 64 secret bytes; fresh ones by default.
    """

    def __init__(self, parameters: Parameters, seed: bytes | None = None) -> None:
        self.parameters = parameters
        self._seed = os.urandom(SEED_BYTES) if seed is None else bytes(seed)
        if len(self._seed) != SEED_BYTES:
            raise InputError(f"a secret key comes from {SEED_BYTES} bytes, got {len(self._seed)}")

    def __repr__(self) -> str:
        return f"SecretKey({self.parameters.name}, {self.fingerprint})"

    @property
    def seed(self) -> bytes:
        """The 64 bytes, to be wrapped for another member."""
        return self._seed

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that differ from key to key and tell nothing of it."""
        return hmac.new(self._seed, b"fedfi key fingerprint", hashlib.blake2b).hexdigest()[:16]

    @functools.cached_property
    def _secret(self) -> Any:
        return seal.make_secret(self.parameters, self._seed)

    @functools.cached_property
    def _encryptor(self) -> Any:
        return seal.encryptor(self.parameters, self._secret)

    @functools.cached_property
    def _decryptor(self) -> Any:
        return seal.decryptor(self.parameters, self._secret)

    def encrypt(self, values: Tensor) -> bytes:
        """A ciphertext of whole numbers, int64 `[n]` with n at most the number of slots."""
        if values.ndim != 1 or len(values) > self.parameters.slots or values.dtype != torch.int64:
            raise InputError(
                f"values of shape {tuple(values.shape)}, {values.dtype}; expected int64 [n], n at most"
                f" {self.parameters.slots}"
            )
        return seal.encrypt(self.parameters, self._encryptor, values.numpy().tolist())

    def decrypt(self, content: bytes) -> Tensor:
        """The whole numbers int64 `[slots]` of a ciphertext or of a sum of some.

        Raises:
            CipherError: If the bytes are no ciphertext, or (BFV) do not decrypt under this key.
        """
        numbers = seal.decrypt(self.parameters, self._decryptor, seal.loaded(self.parameters, content))
        return torch.tensor(numbers, dtype=torch.int64)

    def check_value(self, bits: int, *about: object) -> int:
        """A number below 2^bits that only members can foretell: what a contribution must add to the check slot."""
        text = "\x1f".join(str(a) for a in about)
        digest = hmac.new(self._seed, b"check\x1f" + text.encode(), hashlib.blake2b).digest()
        return int.from_bytes(digest[:8], "little") & ((1 << bits) - 1)


@functools.lru_cache(maxsize=4)
def simulated_key(parameters: Parameters, seed: int) -> SecretKey:
    """A key for experiments in one process, made from the run's seed: it hides nothing from who knows the seed."""
    content = hashlib.blake2b(f"fedfi simulated key {seed}".encode(), digest_size=SEED_BYTES).digest()
    return SecretKey(parameters, content)
