"""A folder of keys: what everybody may read, and what each member alone may.

```
keys/roster.json          public: parameters, epoch, members and their public identities, the key wrapped for each
keys/members/ID.json      private to member ID (mode 600): its identity; move it to where the member is
```

The server needs `roster.json` and nothing else. The key's id is a digest of parameters, epoch, roster and the key's
fingerprint, so any change of members or key changes it, and nothing of one epoch adds up with another's.

All members hold one secret key. Whoever has it *and* what the server received can read every single upload: a server
that colludes with one member learns all. Threshold keys are the way out (`threshold`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfi.crypto.identity import Identity, PublicIdentity
from fedfi.crypto.parameters import Parameters, parameters
from fedfi.crypto.secret import SecretKey
from fedfi.errors import InputError, unknown

VERSION = 1
LEAST = 3
"""Fewest members: with two, each learns what the other sent by subtracting its own."""


@dataclass(frozen=True)
class Roster:
    """The public half of a key folder.

    Attributes:
        parameters: The scheme's parameters.
        epoch: Counts from 1, one more with each rotation.
        fingerprint: Of the secret key.
        members: Public identities by client id.
        wrapped: The secret key, wrapped for each member.
    """

    parameters: Parameters
    epoch: int
    fingerprint: str
    members: Mapping[str, PublicIdentity]
    wrapped: Mapping[str, bytes]

    @property
    def key_id(self) -> str:
        """Sixteen hexadecimal digits of everything that must be the same for two uploads to be added."""
        people = [[c, p.signing.hex(), p.receiving.hex()] for c, p in sorted(self.members.items())]
        content = json.dumps([self.parameters.id, self.epoch, self.fingerprint, people])
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def member(self, client: str) -> PublicIdentity:
        """A member's public identity.

        Raises:
            InputError: If it is not on the roster.
        """
        if client not in self.members:
            raise InputError(unknown("member", client, self.members))
        return self.members[client]

    @staticmethod
    def read(folder: Path) -> Roster:
        """The roster of a key folder.

        Raises:
            InputError: If there is none, or it is damaged.
        """
        path = folder / "roster.json"
        table = _read(path, f"make one with `fedfi keys new {folder}`")
        try:
            if table["version"] != VERSION:
                raise InputError(f"{path}: version {table['version']}, expected {VERSION}")
            members = {
                c: PublicIdentity(bytes.fromhex(m["signing"]), bytes.fromhex(m["receiving"]))
                for c, m in table["members"].items()
            }
            wrapped = {c: bytes.fromhex(w) for c, w in table["wrapped"].items()}
            roster = Roster(
                parameters(table["parameters"]), int(table["epoch"]), str(table["fingerprint"]), members, wrapped
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise error if isinstance(error, InputError) else InputError(f"{path}: is damaged: {error}") from error
        if table.get("key_id") != roster.key_id:
            raise InputError(f"{path}: its key id is {table.get('key_id')}, its content's is {roster.key_id}")
        return roster

    def write(self, folder: Path) -> None:
        """Writes `roster.json`."""
        table = {
            "version": VERSION,
            "parameters": self.parameters.name,
            "epoch": self.epoch,
            "key_id": self.key_id,
            "fingerprint": self.fingerprint,
            "members": {
                c: {"signing": p.signing.hex(), "receiving": p.receiving.hex()} for c, p in self.members.items()
            },
            "wrapped": {c: w.hex() for c, w in self.wrapped.items()},
        }
        _write(folder / "roster.json", table, private=False)


def new(folder: Path, clients: Iterable[str], parameter_set: str = "bfv-4096") -> Roster:
    """Makes identities for all clients and a key for them together, as an offline dealer does.

    Raises:
        InputError: If there are fewer than three clients, or the folder has a roster.
    """
    ids = _members(clients)
    if (folder / "roster.json").exists():
        raise InputError(f"{folder}: has a roster; `fedfi keys rotate {folder}` makes the next key")
    identities = {c: Identity.new() for c in ids}
    for client, identity in identities.items():
        _write_identity(folder, client, identity)
    public = {c: i.public() for c, i in identities.items()}
    return _dealt(folder, parameters(parameter_set), 1, public)


def rotate(folder: Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Roster:
    """A fresh key of the next epoch for a roster that may have changed; removed members cannot read on.

    Raises:
        InputError: For an unknown member to remove, a present one to add, or fewer than three left.
    """
    roster = Roster.read(folder)
    add, remove = list(add), list(remove)
    for client in remove:
        roster.member(client)
    for client in add:
        if client in roster.members:
            raise InputError(f"{client!r} is a member already")
    public = {c: p for c, p in roster.members.items() if c not in remove}
    _members([*public, *add])
    for client in add:
        identity = Identity.new()
        _write_identity(folder, client, identity)
        public[client] = identity.public()
    return _dealt(folder, roster.parameters, roster.epoch + 1, public)


def wrap(folder: Path, by: str, client: str) -> Roster:
    """Wraps the present key for a member once more, by another member who has it.

    Raises:
        InputError: If either is no member, or the private file of `by` is not here.
    """
    roster = Roster.read(folder)
    secret = unlock(folder, by)
    wrapped = roster.member(client).wrap(secret.seed, _context(roster, client))
    roster = dataclasses.replace(roster, wrapped={**roster.wrapped, client: wrapped})
    roster.write(folder)
    return roster


def identity_of(folder: Path, client: str) -> Identity:
    """A member's private identity, where its file is."""
    path = _member_path(folder, client)
    table = _read(path, "it lies with the member alone")
    try:
        return Identity(bytes.fromhex(table["signing"]), bytes.fromhex(table["receiving"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is damaged: {error}") from error


def unlock(folder: Path, client: str) -> SecretKey:
    """The secret key, as a member unwraps it.

    Raises:
        InputError: If the client's private file is not here, or nothing was wrapped for it.
    """
    roster = Roster.read(folder)
    roster.member(client)
    if client not in roster.wrapped:
        raise InputError(f"{folder}: nothing is wrapped for {client!r}; another member can: `fedfi keys wrap`")
    seed = identity_of(folder, client).unwrap(roster.wrapped[client], _context(roster, client))
    secret = SecretKey(roster.parameters, seed)
    if secret.fingerprint != roster.fingerprint:
        raise InputError(f"{folder}: what was wrapped for {client!r} is not the key of the roster")
    return secret


def _dealt(folder: Path, chosen: Parameters, epoch: int, public: Mapping[str, PublicIdentity]) -> Roster:
    secret = SecretKey(chosen)
    roster = Roster(chosen, epoch, secret.fingerprint, dict(public), {})
    wrapped = {c: p.wrap(secret.seed, _context(roster, c)) for c, p in public.items()}
    roster = dataclasses.replace(roster, wrapped=wrapped)
    roster.write(folder)
    return roster


def _context(roster: Roster, client: str) -> bytes:
    return f"fedfi|{roster.key_id}|{client}".encode()


def _members(clients: Iterable[str]) -> list[str]:
    ids = list(clients)
    if len(set(ids)) < LEAST or len(set(ids)) < len(ids):
        raise InputError(
            f"{len(set(ids))} different members of {len(ids)}: expected at least {LEAST}, since with two each learns"
            " what the other sent"
        )
    return ids


def _member_path(folder: Path, client: str) -> Path:
    """A file name for any client id: readable where it can be, unambiguous always."""
    readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in client)[:40]
    suffix = "" if readable == client else "-" + hashlib.blake2b(client.encode(), digest_size=4).hexdigest()
    return folder / "members" / f"{readable}{suffix}.json"


def _write_identity(folder: Path, client: str, identity: Identity) -> None:
    table = {"client": client, "signing": identity.signing.hex(), "receiving": identity.receiving.hex()}
    _write(_member_path(folder, client), table, private=True)


def _write(path: Path, table: Mapping[str, Any], *, private: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o644)
        with os.fdopen(fd, "w") as file:
            json.dump(table, file, indent=1)
        aside.replace(path)
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror or error}") from error


def _read(path: Path, hint: str) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {hint}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{path}: is not a table")
    return table
