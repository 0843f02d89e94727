"""The keys do what they are for: TLS with the right names, and node keys that Flower reads."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedfi[flower]'")

from fedfi.errors import InputError
from fedfi.flower.keys import make_keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["localhost", "127.0.0.1"], nodes=2)
    return folder


def greet(keys, ca, name: str) -> None:
    """A TLS handshake on loopback with the server of these keys."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server/server.pem", keys / "server/server.key")
    client = ssl.create_default_context(cafile=ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def serve():
        with near, contextlib.suppress(OSError):  # a client that hangs up says so itself
            server.wrap_socket(near, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with far, client.wrap_socket(far, server_hostname=name):
            pass
    finally:
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_nodes_trust_the_server(keys, name):
    greet(keys, keys / "node-0/ca.crt", name)


@pytest.mark.parametrize("name", ["federation.example.org", "127.0.0.1"])
def test_the_server_is_trusted_by_its_own_processes_too(name, tmp_path):
    """Flower's processes on the server reach the SuperLink on loopback, whatever its name is elsewhere."""
    make_keys(tmp_path / "keys", ["federation.example.org"])
    greet(tmp_path / "keys", tmp_path / "keys/server/ca.crt", name)


def test_another_name_is_not_trusted(keys):
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(keys, keys / "node-0/ca.crt", "example.org")


def test_another_authority_is_not_trusted(keys, tmp_path):
    make_keys(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(keys, tmp_path / "other/server/ca.crt", "localhost")


def test_flower_reads_the_nodes_keys(keys):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    publics = set()
    for i in range(2):
        private = load_ssh_private_key((keys / f"node-{i}/node.key").read_bytes(), None)
        public = load_ssh_public_key((keys / f"node-{i}/node.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.public_key() == public
        publics.add((keys / f"node-{i}/node.pub").read_bytes())
    assert len(publics) == 2


def test_private_keys_are_private_and_stay_where_they_belong(keys):
    private = {p.relative_to(keys).as_posix() for p in keys.rglob("*.key")}
    assert private == {"ca.key", "server/server.key", "node-0/node.key", "node-1/node.key"}
    for path in keys.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_never_overwritten(keys):
    before = {p: p.read_bytes() for p in keys.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="keys are never overwritten"):
        make_keys(keys)
    assert {p: p.read_bytes() for p in keys.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"days": -1}, {"hosts": []}])
def test_bad_numbers_are_refused(wrong, tmp_path):
    with pytest.raises(InputError, match=next(iter(wrong))):
        make_keys(tmp_path / "keys", **wrong)
