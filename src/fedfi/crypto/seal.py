"""The one door to Microsoft SEAL, as TenSEAL wraps it (extra `he`).

SEAL's objects are saved to and loaded from files alone; here the files are anonymous pieces of memory. All its calls
hold Python's global lock, so parallel work needs processes, between which bytes travel.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedfi.crypto.parameters import SETS, Parameters
from fedfi.errors import InputError


class CipherError(InputError):
    """Bytes that are no ciphertext of these parameters, or that do not decrypt."""


def _library() -> Any:
    try:
        import tenseal.sealapi as sealapi
    except ImportError as error:
        raise InputError("homomorphic encryption needs the extra 'he': pip install 'fedfi[he]'") from error
    return sealapi


@functools.cache
def context(parameters: Parameters, seed: tuple[int, ...] | None = None) -> Any:
    """SEAL's context; with a seed (eight 64-bit numbers) its randomness is a function of it: for making keys only.

    Raises:
        InputError: If the set is not one of the list, or the extra is missing.
    """
    if SETS.get(parameters.name) != parameters:
        raise InputError(f"parameter set {parameters.name!r} is not one of the list (choose from {', '.join(SETS)})")
    s = _library()
    kind = s.SCHEME_TYPE.BFV if parameters.scheme == "bfv" else s.SCHEME_TYPE.CKKS
    chosen = s.EncryptionParameters(kind)
    chosen.set_poly_modulus_degree(parameters.degree)
    chosen.set_coeff_modulus(s.CoeffModulus.Create(parameters.degree, list(parameters.moduli)))
    if parameters.scheme == "bfv":
        chosen.set_plain_modulus(s.PlainModulus.Batching(parameters.degree, parameters.plain_bits))
    if seed is not None:
        chosen.set_random_generator(s.Shake256PRNGFactory(list(seed)))
    made = s.SEALContext(chosen, True, s.SEC_LEVEL_TYPE.TC128)
    if not made.parameters_set():
        raise InputError(f"SEAL refuses {parameters.name!r}: {made.parameters_error_message()}")
    return made


def evaluator(parameters: Parameters) -> Any:
    """What adds ciphertexts; it knows no key."""
    return _library().Evaluator(context(parameters))


def make_secret(parameters: Parameters, seed: bytes) -> Any:
    """The secret key that 64 bytes of entropy determine."""
    numbers = tuple(int.from_bytes(seed[i : i + 8], "little") for i in range(0, 64, 8))
    made = _library().KeyGenerator(context.__wrapped__(parameters, numbers)).secret_key()
    with _memory() as path:  # moved to the context whose randomness is the system's
        made.save(path)
        key = _library().SecretKey()
        key.load(context(parameters), path)
    return key


def encrypt(parameters: Parameters, encryptor: Any, values: Sequence[int]) -> bytes:
    """A fresh ciphertext of up to `slots` whole numbers, `fresh_bytes` long."""
    plain = _library().Plaintext()
    if parameters.scheme == "bfv":
        _tools(parameters).encode(values, plain)
    else:
        _tools(parameters).encode([float(v) for v in values], 2.0**parameters.scale_bits, plain)
    for _ in range(20):
        content = saved(encryptor.encrypt_symmetric(plain))
        if len(content) <= parameters.fresh_bytes:
            return content + bytes(parameters.fresh_bytes - len(content))
    raise CipherError(f"twenty ciphertexts of {parameters.name} were longer than {parameters.fresh_bytes} bytes")


def decrypt(parameters: Parameters, decryptor: Any, cipher: Any) -> list[int]:
    """The `slots` whole numbers of a ciphertext.

    Raises:
        CipherError: If the noise has drowned the content: a wrong key, too many additions, or damage (BFV).
    """
    plain = _library().Plaintext()
    decryptor.decrypt(cipher, plain)
    if parameters.scheme == "bfv":
        if decryptor.invariant_noise_budget(cipher) <= 0:
            raise CipherError("a ciphertext does not decrypt: another key, or too many additions")
        return list(_tools(parameters).decode_int64(plain))
    return [round(v) for v in _tools(parameters).decode_double(plain)]


def encryptor(parameters: Parameters, secret: Any) -> Any:
    """What encrypts by the secret key: half of a fresh ciphertext is a seed, which halves the upload."""
    return _library().Encryptor(context(parameters), secret)


def decryptor(parameters: Parameters, secret: Any) -> Any:
    """What decrypts."""
    return _library().Decryptor(context(parameters), secret)


def loaded(parameters: Parameters, content: bytes) -> Any:
    """A ciphertext out of bytes from elsewhere; SEAL checks it against the parameters.

    Raises:
        CipherError: If it is none.
    """
    cipher = _library().Ciphertext()
    with _memory(content) as path:
        try:
            cipher.load(context(parameters), path)
        except (RuntimeError, ValueError) as error:
            raise CipherError(f"not a ciphertext of {parameters.name}: {error}") from None
    if cipher.size() != 2 or cipher.is_transparent():
        raise CipherError(f"a ciphertext of {cipher.size()} parts, or one without content")
    return cipher


def saved(thing: Any) -> bytes:
    """The bytes of a SEAL object."""
    with _memory() as path:
        thing.save(path)
        return _content(path)


@functools.cache
def _tools(parameters: Parameters) -> Any:
    s = _library()
    return (s.BatchEncoder if parameters.scheme == "bfv" else s.CKKSEncoder)(context(parameters))


@contextmanager
def _memory(content: bytes = b"") -> Iterator[str]:
    """The path of a file that is nowhere on a disk where the system has such, and gone afterwards."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):  # noqa: PTH112 - a kernel's path
        fd = os.memfd_create("fedfi")
        path = f"/proc/self/fd/{fd}"
    else:
        fd, path = tempfile.mkstemp(prefix="fedfi-")
    try:
        os.write(fd, content)
        yield path
    finally:
        os.close(fd)
        if not path.startswith("/proc/"):
            os.unlink(path)  # noqa: PTH108 - a name made above


def _content(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - a kernel's path
        return file.read()
