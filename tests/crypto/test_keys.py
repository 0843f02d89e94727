from __future__ import annotations

import json
import stat

import pytest

from fedfi.crypto import keys
from fedfi.crypto.roster import Roster
from fedfi.errors import InputError

pytest.importorskip("cryptography", reason="the extra 'he' is not installed")
pytest.importorskip("tenseal", reason="the extra 'he' is not installed")
CLIENTS = ["a", "b", "VA Long Beach"]


@pytest.fixture
def folder(tmp_path):
    keys.new(tmp_path / "keys", CLIENTS)
    return tmp_path / "keys"


def test_every_member_unwraps_the_same_key(folder):
    prints = {keys.unlock(folder, c).fingerprint for c in CLIENTS}
    assert prints == {Roster.read(folder).fingerprint}


def test_private_files_are_for_their_owner_alone_and_the_roster_holds_no_secret(folder):
    private = sorted((folder / "members").iterdir())
    assert len(private) == 3
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in private)
    public = (folder / "roster.json").read_text()
    secret = keys.unlock(folder, "a")
    assert secret.seed.hex() not in public
    for path in private:
        table = json.loads(path.read_text())
        assert table["signing"] not in public
        assert table["receiving"] not in public


def test_another_member_cannot_unwrap_what_is_not_for_it(folder):
    roster = Roster.read(folder)
    identity = keys.identity_of(folder, "b")
    with pytest.raises(InputError, match="for somebody else"):
        identity.unwrap(roster.wrapped["a"], f"fedfi|{roster.key_id}|a".encode())
    own = f"fedfi|{roster.key_id}|b".encode()
    identity.unwrap(roster.wrapped["b"], own)
    with pytest.raises(InputError, match="of another epoch"):
        identity.unwrap(roster.wrapped["b"], own + b"2")


def test_rotation_makes_another_key_of_the_next_epoch(folder):
    before, old = Roster.read(folder), keys.unlock(folder, "a")
    after = keys.rotate(folder, add=["d"], remove=["b"])
    assert (after.epoch, set(after.members)) == (2, {"a", "VA Long Beach", "d"})
    assert before.key_id != after.key_id
    assert keys.unlock(folder, "d").fingerprint == after.fingerprint != old.fingerprint
    with pytest.raises(InputError, match="unknown member 'b'"):
        keys.unlock(folder, "b")


def test_wrapping_again_serves_a_member_whose_wrap_is_lost(folder):
    path = folder / "roster.json"
    table = json.loads(path.read_text())
    del table["wrapped"]["b"]
    path.write_text(json.dumps(table))
    with pytest.raises(InputError, match="nothing is wrapped for 'b'"):
        keys.unlock(folder, "b")
    keys.wrap(folder, by="a", client="b")
    assert keys.unlock(folder, "b").fingerprint == keys.unlock(folder, "a").fingerprint


@pytest.mark.parametrize("clients", [["a", "b"], ["a", "a", "b"], ["a", "a", "b", "c"]])
def test_fewer_than_three_members_are_refused(tmp_path, clients):
    with pytest.raises(InputError, match="at least 3"):
        keys.new(tmp_path, clients)


def test_a_folder_is_not_overwritten(folder):
    with pytest.raises(InputError, match="has a roster"):
        keys.new(folder, CLIENTS)


def test_identities_are_never_replaced(folder):
    """The roster alone is lost: new identities would take every member's secret from it."""
    before = {p: p.read_bytes() for p in (folder / "members").iterdir()}
    roster = (folder / "roster.json").read_bytes()
    (folder / "roster.json").unlink()
    for clients in (CLIENTS, ["d", "e", "f"]):
        with pytest.raises(InputError, match=r"identities of members, such as .*put back roster.json"):
            keys.new(folder, clients)
    with pytest.raises(InputError, match="no such file; put it back"):
        Roster.read(folder)
    (folder / "roster.json").write_bytes(roster)
    keys.rotate(folder, remove=["b"], add=["d"])
    with pytest.raises(InputError, match=r"members/b.json: is there already"):
        keys.rotate(folder, add=["b"])
    assert before == {p: p.read_bytes() for p in before}
    assert "d" in Roster.read(folder).members


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError])
def test_what_is_interrupted_leaves_no_identities_behind(folder, error, monkeypatch):
    def interrupted(*rest):
        raise error("now")

    monkeypatch.setattr(keys, "_dealt", interrupted)
    with pytest.raises(error):
        keys.new(folder.parent / "other", CLIENTS)
    with pytest.raises(error):
        keys.rotate(folder, add=["d"])
    assert list((folder.parent / "other/members").iterdir()) == []
    assert len(list((folder / "members").iterdir())) == 3


def test_a_folder_without_anything_is_made_by_a_command_that_works(tmp_path):
    with pytest.raises(InputError, match=r"fedfi keys new .*none --for FILE.toml"):
        Roster.read(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_secret_that_others_may_read_is_refused(folder, mode):
    path = folder / "members/a.json"
    path.chmod(mode)
    with pytest.raises(InputError, match=rf"a.json: has mode {mode:03o}, .*nearest valid: chmod 600"):
        keys.unlock(folder, "a")
    path.chmod(0o400)
    keys.unlock(folder, "a")


def test_identities_that_others_may_replace_are_refused(folder):
    members = folder / "members"
    assert stat.S_IMODE(members.stat().st_mode) == 0o700
    members.chmod(0o777)
    with pytest.raises(InputError, match=r"members: has mode 777, .*nearest valid: chmod 700"):
        keys.unlock(folder, "a")
    members.chmod(0o755)
    keys.unlock(folder, "a")


def test_what_is_wrong_with_a_key_names_the_file(folder):
    members = folder / "members"
    (members / "b.json").write_bytes((members / "a.json").read_bytes())
    with pytest.raises(InputError, match=r"members/b.json: is not the identity that .* has of 'b', but that of 'a'"):
        keys.unlock(folder, "b")
    with pytest.raises(InputError, match=r"keys: unknown member 'c'"):
        keys.unlock(folder, "c")
    path = folder / "roster.json"
    table = json.loads(path.read_text())
    table["wrapped"]["a"] = table["wrapped"]["VA Long Beach"]
    path.write_text(json.dumps(table))
    with pytest.raises(InputError, match=r"roster.json: 'a': the wrapped key is for somebody else"):
        keys.unlock(folder, "a")


def test_a_roster_that_was_changed_is_refused(folder):
    path = folder / "roster.json"
    path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 2'))
    with pytest.raises(InputError, match="its key id is"):
        Roster.read(folder)
    path.write_text("{}")
    with pytest.raises(InputError, match="is damaged"):
        Roster.read(folder)
    path.unlink()
    with pytest.raises(InputError, match="fedfi keys new"):
        Roster.read(folder)
