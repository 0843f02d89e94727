"""What a server does with ciphertexts: add them. It takes public parameters and has no place for a key."""

from __future__ import annotations

from typing import Any, Final, Protocol, final

import numpy as np

from fedfi.crypto import seal
from fedfi.crypto.parameters import LIMIT, Parameters
from fedfi.errors import InputError


class Sum(Protocol):
    """Something that payloads are added to."""

    count: int

    def add(self, payload: bytes) -> None:
        """Adds one payload."""
        ...

    def read(self, payload: bytes) -> Any:
        """A payload, checked, as `take` adds it; nothing is added yet."""
        ...

    def take(self, term: Any) -> None:
        """Adds what was read."""
        ...

    def result(self) -> bytes:
        """The sum, as bytes of a fixed length."""
        ...


@final
class CipherSum:
    """A running sum of ciphertexts."""

    __slots__ = ("_evaluator", "_parameters", "_sum", "count")

    def __init__(self, parameters: Parameters) -> None:
        self._parameters: Final = parameters
        self._evaluator: Final = seal.evaluator(parameters)
        self._sum: Any = None
        self.count = 0

    def add(self, payload: bytes) -> None:
        """Adds a ciphertext.

        Raises:
            CipherError: If it is none of these parameters.
            InputError: If more are added than the noise allows for.
        """
        self.take(self.read(payload))

    def read(self, payload: bytes) -> Any:
        """A ciphertext, checked.

        Raises:
            CipherError: If it is none of these parameters.
            InputError: If more are added than the noise allows for.
        """
        if self.count >= self._parameters.additions:
            raise InputError(f"a sum of more than {self._parameters.additions} ciphertexts drowns in noise")
        return seal.loaded(self._parameters, payload)

    def take(self, term: Any) -> None:
        """Adds a ciphertext that was read."""
        if self._sum is None:
            self._sum = term
        else:
            self._evaluator.add_inplace(self._sum, term)
        self.count += 1

    def result(self) -> bytes:
        """The sum, padded to `sum_bytes`."""
        if self._sum is None:
            raise InputError("nothing was added up")
        content = seal.saved(self._sum)
        return content + bytes(max(0, self._parameters.sum_bytes - len(content)))


@final
class PlainSum:
    """The same of whole numbers in the clear: 32 bits each, little-endian."""

    __slots__ = ("_sum", "count")

    def __init__(self) -> None:
        self._sum: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self.count = 0

    def add(self, payload: bytes) -> None:
        """Adds whole numbers.

        Raises:
            InputError: If their number differs.
        """
        self.take(self.read(payload))

    def read(self, payload: bytes) -> Any:
        """Whole numbers, int64.

        Raises:
            InputError: If their number differs.
        """
        values = np.frombuffer(payload, dtype="<i4").astype(np.int64)
        if self._sum is not None and len(values) != len(self._sum):
            raise InputError(f"a payload of {len(values)} numbers, expected {len(self._sum)}")
        return values

    def take(self, term: Any) -> None:
        """Adds numbers that were read."""
        self._sum = term if self._sum is None else self._sum + term
        self.count += 1

    def result(self) -> bytes:
        """The sum."""
        if self._sum is None:
            raise InputError("nothing was added up")
        if int(np.abs(self._sum).max(initial=0)) > LIMIT:
            raise InputError(f"a sum beyond {LIMIT}; the fixed point was not checked")
        return self._sum.astype("<i4").tobytes()
