"""The only file that imports `cryptography`, when keys are needed: what the others need of it."""

from __future__ import annotations

from fedfi.errors import InputError

try:
    from cryptography import exceptions, x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise InputError("keys need the package cryptography: pip install 'fedfi[he]', or 'fedfi[flower]'") from error

__all__ = [
    "AESGCM",
    "HKDF",
    "ExtendedKeyUsageOID",
    "NameOID",
    "ec",
    "ed25519",
    "exceptions",
    "hashes",
    "serialization",
    "x509",
    "x25519",
]
