"""The one door to OpenFHE (extra `threshold`): keys of which every member holds a part, and none the whole.

n of n: all members must help to decrypt, so a member that is away ends the round, and what a server that colludes
with some of them holds stays closed as long as one does not take part. OpenFHE's Python wheels hold binaries for few
Python versions; where they do not fit, `available` is false and every use says so.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from fedfi.errors import InputError


def _library() -> Any:
    try:
        import openfhe
    except ImportError as error:
        raise InputError(
            "threshold keys need the extra 'threshold': pip install 'fedfi[threshold]', on a Python version that"
            f" openfhe has binaries for; this is {platform.python_version()} ({error})"
        ) from error
    return openfhe


def available() -> bool:
    """Whether OpenFHE can be loaded."""
    try:
        _library()
    except InputError:
        return False
    return True


class ThresholdGroup:
    """BFV whose secret key exists only in parts.

    Args:
        members: Who holds a part, in the order in which the public key is built up.
        additions: Most ciphertexts that are added up.
    """

    def __init__(self, members: Sequence[str], additions: int = 1024) -> None:
        fhe = _library()
        if len(members) < 2:
            raise InputError(f"{len(members)} members; a key in parts needs at least 2")
        settings = fhe.CCParamsBFVRNS()
        settings.SetPlaintextModulus(4294475777)  # prime, 1 modulo 2^14: batching up to degree 8192
        settings.SetMultiplicativeDepth(0)
        settings.SetEvalAddCount(additions)
        settings.SetSecurityLevel(fhe.SecurityLevel.HEStd_128_classic)
        self.context = fhe.GenCryptoContext(settings)
        for feature in (fhe.PKESchemeFeature.PKE, fhe.PKESchemeFeature.LEVELEDSHE, fhe.PKESchemeFeature.MULTIPARTY):
            self.context.Enable(feature)
        self._parts: dict[str, Any] = {}
        pair: Any = None
        for member in members:
            pair = self.context.KeyGen() if pair is None else self.context.MultipartyKeyGen(pair.publicKey)
            self._parts[member] = pair.secretKey
        self.public = pair.publicKey

    def encrypt(self, values: Sequence[int]) -> Any:
        """A ciphertext under the joint public key; it takes no secret."""
        return self.context.Encrypt(self.public, self.context.MakePackedPlaintext(list(values)))

    def add(self, ciphers: Sequence[Any]) -> Any:
        """The sum; it takes no secret."""
        total = ciphers[0]
        for cipher in ciphers[1:]:
            total = self.context.EvalAdd(total, cipher)
        return total

    def share(self, member: str, cipher: Any, *, lead: bool) -> Any:
        """A member's part of the decryption; one member is the lead."""
        decrypt = self.context.MultipartyDecryptLead if lead else self.context.MultipartyDecryptMain
        return decrypt([cipher], self._parts[member])[0]

    def fuse(self, shares: Sequence[Any], length: int) -> list[int]:
        """The whole numbers, out of the parts of all members."""
        if len(shares) != len(self._parts):
            raise InputError(f"{len(shares)} parts of a decryption, {len(self._parts)} are needed")
        plain = self.context.MultipartyDecryptFusion(list(shares))
        plain.SetLength(length)
        return [int(v) for v in plain.GetPackedValue()]
