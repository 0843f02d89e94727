"""Who somebody is, and secrets for somebody alone (extra `he`).

A member has two key pairs: Ed25519 to sign, X25519 to receive. A secret is wrapped for a member by an ephemeral
X25519 exchange, HKDF-SHA256 and AES-256-GCM, bound to a context that the receiver must know.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fedfi.errors import InputError

_NONCE, _PUBLIC = 12, 32
SIGNATURE_BYTES = 64


def _parts() -> Any:
    from fedfi.crypto.door import AESGCM, HKDF, ed25519, exceptions, hashes, x25519

    return exceptions, hashes, ed25519, x25519, AESGCM, HKDF


@dataclass(frozen=True)
class PublicIdentity:
    """What everybody may know of a member.

    Attributes:
        signing: Ed25519 public key, 32 bytes.
        receiving: X25519 public key, 32 bytes.
    """

    signing: bytes
    receiving: bytes

    def verifies(self, content: bytes, signature: bytes) -> bool:
        """Whether the member signed these bytes."""
        exceptions, _, ed25519, *_ = _parts()
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, content)
        except (exceptions.InvalidSignature, ValueError):
            return False
        return True

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        """A secret that this member alone can read, bound to a context."""
        _, _, _, x25519, aead, _ = _parts()
        ephemeral = x25519.X25519PrivateKey.generate()
        shared = ephemeral.exchange(x25519.X25519PublicKey.from_public_bytes(self.receiving))
        public, nonce = ephemeral.public_key().public_bytes_raw(), os.urandom(_NONCE)
        sealed: bytes = aead(_derived(shared, public + self.receiving)).encrypt(nonce, secret, context)
        return bytes(public) + nonce + sealed


@dataclass(frozen=True, repr=False)
class Identity:
    """A member's private half.

    Attributes:
        signing: Ed25519 private key, 32 bytes.
        receiving: X25519 private key, 32 bytes.
    """

    signing: bytes
    receiving: bytes

    @staticmethod
    def new() -> Identity:
        """A fresh identity."""
        return Identity(os.urandom(32), os.urandom(32))

    def public(self) -> PublicIdentity:
        """The half that everybody may know."""
        _, _, ed25519, x25519, *_ = _parts()
        return PublicIdentity(
            ed25519.Ed25519PrivateKey.from_private_bytes(self.signing).public_key().public_bytes_raw(),
            x25519.X25519PrivateKey.from_private_bytes(self.receiving).public_key().public_bytes_raw(),
        )

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        _, _, ed25519, *_ = _parts()
        signature: bytes = ed25519.Ed25519PrivateKey.from_private_bytes(self.signing).sign(content)
        return signature

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """The secret that was wrapped for this member.

        Raises:
            InputError: If it was wrapped for somebody else, for another context, or is damaged.
        """
        _, _, _, x25519, aead, _ = _parts()
        if len(wrapped) < _PUBLIC + _NONCE + 16:
            raise InputError(f"a wrapped key of {len(wrapped)} bytes is too short")
        public, nonce, content = wrapped[:_PUBLIC], wrapped[_PUBLIC : _PUBLIC + _NONCE], wrapped[_PUBLIC + _NONCE :]
        own = x25519.X25519PrivateKey.from_private_bytes(self.receiving)
        try:
            shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(public))
            key = _derived(shared, public + own.public_key().public_bytes_raw())
            secret: bytes = aead(key).decrypt(nonce, content, context)
        except Exception as error:  # cryptography raises several kinds, all of which mean the same here
            raise InputError("the wrapped key is for somebody else, of another epoch, or damaged") from error
        return secret


def _derived(shared: bytes, both: bytes) -> bytes:
    _, hashes, _, _, _, hkdf = _parts()
    key: bytes = hkdf(algorithm=hashes.SHA256(), length=32, salt=None, info=b"fedfi wrap" + both).derive(shared)
    return key
