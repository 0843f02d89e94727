"""Keys for a federation: TLS for the SuperLink, and a pair for each node by which the SuperLink knows it.

The only file that needs `cryptography`, which comes with Flower.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedfi.errors import InputError

LOOPBACK = ("localhost", "127.0.0.1")
"""How a SuperLink reaches itself, for its own processes do so by its certificate, too."""


def make_keys(out: Path, hosts: Sequence[str] = LOOPBACK, nodes: int = 1, days: int = 730) -> list[Path]:
    """Makes a certificate authority, a certificate for the SuperLink, and a key pair for each node.

    Writes `out/ca.key` (to be kept off-line: it makes more certificates), `out/server/` (for the SuperLink:
    `ca.crt`, `server.pem`, `server.key`) and `out/node-0/`, `out/node-1/`, ... (one for each node: `ca.crt`,
    `node.key`, `node.pub`). Private files are readable by their owner alone. Nothing is overwritten.

    Args:
        out: A folder, new or empty.
        hosts: Names and addresses by which nodes reach the SuperLink; those of `LOOPBACK` are always added.
        nodes: How many.
        days: How long the certificates are valid.

    Returns:
        The files.

    Raises:
        InputError: If the folder is not empty, a number is out of range, or `cryptography` is not installed.
    """
    for what, number in (("nodes", nodes), ("days", days)):
        if number < 1:
            raise InputError(f"{what} = {number}: must be at least 1 (nearest valid: 1)")
    if not hosts:
        raise InputError("hosts: names none; nodes reach the SuperLink by a name or an address")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and is not empty; keys are never overwritten")
    from fedfi.crypto.door import ExtendedKeyUsageOID, NameOID, ec, hashes, serialization, x509

    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: Any, signer: Any, *extensions: tuple[Any, bool]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("fedfi federation"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def private(key: Any, kind: Any) -> bytes:
        plain = serialization.NoEncryption()
        return bytes(key.private_bytes(serialization.Encoding.PEM, kind, plain))

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and CRLs
    root = certificate("fedfi federation", authority, authority, (x509.BasicConstraints(True, 0), True), (usage, True))
    names = x509.SubjectAlternativeName([_general_name(x509, host) for host in dict.fromkeys([*hosts, *LOOPBACK])])
    own = certificate(
        hosts[0],
        server,
        authority,
        (x509.BasicConstraints(False, None), True),
        (names, False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    )
    files = {
        out / "ca.key": private(authority, serialization.PrivateFormat.PKCS8),
        out / "server/ca.crt": root,
        out / "server/server.pem": own,
        out / "server/server.key": private(server, serialization.PrivateFormat.PKCS8),
    }
    for i in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        files[out / f"node-{i}/ca.crt"] = root
        files[out / f"node-{i}/node.key"] = private(key, serialization.PrivateFormat.OpenSSH)
        files[out / f"node-{i}/node.pub"] = bytes(
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )
    for path, content in files.items():
        _write(path, content)
    return list(files)


def _general_name(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = 0o600 if path.suffix == ".key" else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
