"""A folder of keys: what everybody may read, and what each member alone may.

```
keys/roster.json          public: parameters, epoch, members and their public identities, the key wrapped for each
keys/members/ID.json      private to member ID (mode 600): its identity; move it to where the member is
```

An identity that others may read, or replace, is refused, as ssh does; none is ever overwritten.

The server needs `roster.json` and nothing else. The key's id is a digest of parameters, epoch, roster and the key's
fingerprint, so any change of members or key changes it, and nothing of one epoch adds up with another's.

All members hold one secret key. Whoever has it *and* what the server received can read every single upload: a server
that colludes with one member learns all. Threshold keys are the way out (`threshold`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedfi.crypto.identity import Identity, PublicIdentity
from fedfi.crypto.parameters import Parameters, parameters
from fedfi.crypto.roster import Roster, identities_in, read_table, write_table
from fedfi.crypto.secret import SecretKey
from fedfi.errors import InputError

LEAST = 3
"""Fewest members: with two, each learns what the other sent by subtracting its own."""


def new(folder: Path, clients: Iterable[str], parameter_set: str = "bfv-4096") -> Roster:
    """Makes identities for all clients and a key for them together, as an offline dealer does.

    Raises:
        InputError: If there are fewer than three clients, or the folder has a roster or anybody's identity.
    """
    ids, chosen = _members(clients), parameters(parameter_set)
    if (folder / "roster.json").exists():
        raise InputError(f"{folder}: has a roster; `fedfi keys rotate {folder}` makes the next key")
    if held := identities_in(folder):
        raise InputError(
            f"{folder}: has no roster but identities of members, such as {held[0]}, which new ones would replace; put"
            " back roster.json (the server has a copy), or give another folder"
        )
    with _fresh(folder, ids) as public:
        return _dealt(folder, chosen, 1, public)


def rotate(folder: Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Roster:
    """A fresh key of the next epoch for a roster that may have changed; removed members cannot read on.

    Raises:
        InputError: For an unknown member to remove, a present one to add or one whose identity is there, or fewer than
            three left.
    """
    roster = Roster.read(folder)
    add, remove = list(add), list(remove)
    for client in remove:
        roster.member(client)
    for client in add:
        if client in roster.members:
            raise InputError(f"{client!r} is a member already")
        if (path := _member_path(folder, client)).exists():
            raise InputError(f"{path}: is there already, and a new identity would replace it; move it away first")
    public = {c: p for c, p in roster.members.items() if c not in remove}
    _members([*public, *add])
    with _fresh(folder, add) as added:
        return _dealt(folder, roster.parameters, roster.epoch + 1, public | added)


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
    """A member's private identity, where its file is.

    Raises:
        InputError: If it is not here, is damaged, or others on this machine may read or replace it.
    """
    path = _member_path(folder, client)
    table = read_table(path, "it lies with the member alone")
    _refuse_open(path)
    try:
        return Identity(bytes.fromhex(table["signing"]), bytes.fromhex(table["receiving"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is damaged: {error}") from error


def unlock(folder: Path, client: str) -> SecretKey:
    """The secret key, as a member unwraps it.

    Raises:
        InputError: If the client's private file is not here or is another's, or nothing was wrapped for it.
    """
    roster = Roster.read(folder)
    member = roster.member(client)
    if client not in roster.wrapped:
        raise InputError(f"{folder}: nothing is wrapped for {client!r}; another member can: `fedfi keys wrap`")
    identity, path = identity_of(folder, client), _member_path(folder, client)
    if (public := identity.public()) != member:
        whose = next((f", but that of {c!r}" for c, p in roster.members.items() if p == public), "")
        raise InputError(f"{path}: is not the identity that {folder / 'roster.json'} has of {client!r}{whose}")
    try:
        seed = identity.unwrap(roster.wrapped[client], _context(roster, client))
    except InputError as error:
        raise InputError(f"{folder / 'roster.json'}: {client!r}: {error}") from error
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


def _refuse_open(path: Path) -> None:
    """A secret that others may read is none, and one that they may replace is theirs."""
    if os.name != "posix":
        return
    for place, mask, what in [(path, 0o077, "read or replace"), (path.parent, 0o022, "replace what is in")]:
        mode = stat.S_IMODE(place.stat().st_mode)
        if mode & mask:
            wanted = mode & ~0o077
            raise InputError(
                f"{place}: has mode {mode:03o}, with which others may {what} it (nearest valid: chmod {wanted:03o})"
            )


def _member_path(folder: Path, client: str) -> Path:
    """A file name for any client id: readable where it can be, unambiguous always."""
    readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in client)[:40]
    suffix = "" if readable == client else "-" + hashlib.blake2b(client.encode(), digest_size=4).hexdigest()
    return folder / "members" / f"{readable}{suffix}.json"


@contextmanager
def _fresh(folder: Path, clients: Iterable[str]) -> Iterator[dict[str, PublicIdentity]]:
    """Writes identities, and takes back those that never come onto the roster, also after Ctrl-C."""
    public: dict[str, PublicIdentity] = {}
    try:
        for client in clients:
            identity = Identity.new()
            public[client] = identity.public()
            _write_identity(folder, client, identity)
        yield public
    except BaseException:
        path = folder / "roster.json"
        known = path.read_text(encoding="utf-8") if path.exists() else ""
        for client, made in public.items():
            if made.signing.hex() not in known:
                _member_path(folder, client).unlink(missing_ok=True)
        raise


def _write_identity(folder: Path, client: str, identity: Identity) -> None:
    table = {"client": client, "signing": identity.signing.hex(), "receiving": identity.receiving.hex()}
    write_table(_member_path(folder, client), table, private=True)
