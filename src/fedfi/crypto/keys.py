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
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedfi.crypto.identity import Identity, PublicIdentity
from fedfi.crypto.parameters import Parameters, parameters
from fedfi.crypto.roster import Roster, read_table, write_table
from fedfi.crypto.secret import SecretKey
from fedfi.errors import InputError

LEAST = 3
"""Fewest members: with two, each learns what the other sent by subtracting its own."""


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
    table = read_table(path, "it lies with the member alone")
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
    write_table(_member_path(folder, client), table, private=True)
