"""The sets of homomorphic parameters that may be used: 128 bits of security, additions only.

SEAL itself accepts parameters without any security; nothing outside this list reaches it.

| set | ring degree | modulus | values a ciphertext |
|---|---|---|---|
| `bfv-4096` | 4096 | 54 + 55 = 109 bits, the most that 128 bits of security allow | 4096 whole numbers, exact |
| `ckks-4096` | 4096 | 54 + 55 bits | 2048 real numbers, rounded back to the whole numbers that they were |

The second prime is there because SEAL keeps one for its key level; ciphertexts live modulo the first.

Values are whole numbers whose sum stays within `LIMIT` in either scheme. In BFV a sum beyond half the plain modulus
wraps around; in CKKS a sum times the scale beyond half the ciphertext modulus does. Neither says so, which is why
`FixedPoint` refuses before anything is encrypted. CKKS holds whole numbers at a scale of 2^21, so that the noise of a
few hundred additions stays far below one half and rounding gives the exact sum.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from fedfi.errors import InputError, unknown

LIMIT = 2**31 - 2**18
"""Largest magnitude of a sum: below half of any 32-bit plain modulus that SEAL finds for batching."""


@dataclass(frozen=True)
class Parameters:
    """One set of the list.

    Attributes:
        name: Its name.
        scheme: BFV (exact) or CKKS (approximate, rounded).
        degree: Degree of the ring.
        moduli: Bits of the primes of the ciphertext modulus, the key level's last.
        plain_bits: Bits of the plain modulus (BFV).
        scale_bits: Bits of the scale (CKKS).
        slots: Values a ciphertext.
        fresh_bytes: Bytes of an encrypted packet on the wire, padded: the second half is a seed.
        sum_bytes: Bytes of a sum on the wire, padded.
        additions: Most ciphertexts that may be added up.
    """

    name: str
    scheme: Literal["bfv", "ckks"]
    degree: int
    moduli: tuple[int, ...]
    plain_bits: int
    scale_bits: int
    slots: int
    fresh_bytes: int
    sum_bytes: int
    additions: int

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that name this set in every message."""
        text = f"{self.scheme}|{self.degree}|{self.moduli}|{self.plain_bits}|{self.scale_bits}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# Compressed sizes vary by some dozens of bytes with the random content; they are padded to a length that none of
# thousands of samples reached, so that the traffic of a run is a number and not a distribution.
SETS = {
    p.name: p
    for p in (
        Parameters("bfv-4096", "bfv", 4096, (54, 55), 32, 0, 4096, 31_104, 61_824, 1024),
        Parameters("ckks-4096", "ckks", 4096, (54, 55), 0, 21, 2048, 31_104, 61_824, 1024),
    )
}


def parameters(name: str) -> Parameters:
    """A set by name.

    Raises:
        InputError: If it is not on the list.
    """
    if name not in SETS:
        raise InputError(unknown("parameter set", name, SETS))
    return SETS[name]
