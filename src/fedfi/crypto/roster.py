"""The public half of a folder of keys: all that a server needs, and no way to a secret."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfi.crypto.identity import PublicIdentity
from fedfi.crypto.parameters import Parameters, parameters
from fedfi.errors import InputError, unknown

VERSION = 1


@dataclass(frozen=True)
class Roster:
    """The public half of a key folder.

    Attributes:
        parameters: The scheme's parameters.
        epoch: Counts from 1, one more with each rotation.
        fingerprint: Of the secret key.
        members: Public identities by client id.
        wrapped: The secret key, wrapped for each member.
        folder: Where it was read.
    """

    parameters: Parameters
    epoch: int
    fingerprint: str
    members: Mapping[str, PublicIdentity]
    wrapped: Mapping[str, bytes]
    folder: Path | None = field(default=None, compare=False)

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
            where = "" if self.folder is None else f"{self.folder}: "
            raise InputError(where + unknown("member", client, self.members))
        return self.members[client]

    @staticmethod
    def read(folder: Path) -> Roster:
        """The roster of a key folder.

        Raises:
            InputError: If there is none, or it is damaged.
        """
        path = folder / "roster.json"
        hint = f"make one with `fedfi keys new {folder} --for FILE.toml`"
        if identities_in(folder):
            hint = "put it back: it fits the identities in members/, and those of `fedfi keys new` would be others"
        table = read_table(path, hint)
        try:
            if table["version"] != VERSION:
                raise InputError(f"{path}: version {table['version']}, expected {VERSION}")
            members = {
                c: PublicIdentity(bytes.fromhex(m["signing"]), bytes.fromhex(m["receiving"]))
                for c, m in table["members"].items()
            }
            wrapped = {c: bytes.fromhex(w) for c, w in table["wrapped"].items()}
            roster = Roster(
                parameters(table["parameters"]),
                int(table["epoch"]),
                str(table["fingerprint"]),
                members,
                wrapped,
                folder,
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
        write_table(folder / "roster.json", table, private=False)


def identities_in(folder: Path) -> list[Path]:
    """The private files of members that lie in a key folder."""
    return sorted((folder / "members").glob("*.json"))


def write_table(path: Path, table: Mapping[str, Any], *, private: bool) -> None:
    """Writes a table as JSON, whole or not at all; a private one for its owner alone."""
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o644)
        with os.fdopen(fd, "w") as file:
            json.dump(table, file, indent=1)
        aside.replace(path)
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror or error}") from error


def read_table(path: Path, hint: str) -> dict[str, Any]:
    """Reads a table; where there is none, the error ends with the hint."""
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
