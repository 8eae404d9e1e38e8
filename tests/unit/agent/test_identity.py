"""Identities: files that only their owner can read, and keys that other clients can use."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.public import Box
from nacl.signing import SigningKey

from posthouse.agent.identity import Identity
from posthouse.agent.uuid7 import uuid7
from posthouse.errors import BadAddress, BadEnvelope, BadIdentity

SEED = bytes(31) + b"\1"
NOW = "2026-01-31T12:00:00+00:00"


def foreign_file(path: Path, **changes: object) -> Path:
    """A key file as the TypeScript client of Pinch writes it."""
    public = bytes(SigningKey(SEED).verify_key)
    document = {
        "version": 1,
        "public_key": base64.b64encode(public).decode(),
        "private_key": base64.b64encode(SEED + public).decode(),
        "created_at": "2026-01-31T12:00:00.000Z",
        **changes,
    }
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    path.chmod(0o600)
    return path


def test_a_key_is_saved_for_its_owner_alone_and_comes_back(tmp_path: Path):
    path = tmp_path / "deep" / "identity.json"
    made = Identity.generate()
    made.save(path, NOW)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert Identity.load(path).public_key == made.public_key
    assert [p.name for p in path.parent.iterdir()] == ["identity.json"]


def test_a_foreign_clients_key_file_is_ours_and_ours_is_theirs(tmp_path: Path):
    theirs = Identity.load(foreign_file(tmp_path / "theirs.json"))
    assert theirs.public_key == bytes(SigningKey(SEED).verify_key)
    theirs.save(tmp_path / "ours.json", "2026-01-31T12:00:00.000Z")
    assert json.loads((tmp_path / "ours.json").read_text()) == json.loads((tmp_path / "theirs.json").read_text())


def test_the_seed_alone_is_a_private_key(tmp_path: Path):
    path = foreign_file(tmp_path / "key.json", private_key=base64.b64encode(SEED).decode())
    assert Identity.load(path).public_key == bytes(SigningKey(SEED).verify_key)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int):
    path = foreign_file(tmp_path / "key.json")
    path.chmod(mode)
    with pytest.raises(BadIdentity, match=f"others can read .*{mode:04o}.*chmod 600"):
        Identity.load(path)


def test_a_key_that_is_there_is_never_replaced(tmp_path: Path):
    path = tmp_path / "identity.json"
    first = Identity.generate()
    first.save(path, NOW)
    with pytest.raises(BadIdentity, match="already"):
        Identity.generate().save(path, NOW)
    assert Identity.load(path).public_key == first.public_key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"private_key": None}, "no identity"),
        ({"public_key": 7}, "no identity"),
        ({"private_key": "not base64!"}, "no identity"),
        ({"private_key": base64.b64encode(bytes(33)).decode()}, "33 bytes"),
        ({"public_key": base64.b64encode(bytes(32)).decode()}, "does not belong"),
        ({"private_key": base64.b64encode(SEED + bytes(32)).decode()}, "does not belong"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, object], words: str):
    with pytest.raises(BadIdentity, match=words):
        Identity.load(foreign_file(tmp_path / "key.json", **changes))


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"[" * 10_000])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: bytes):
    path = tmp_path / "key.json"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(BadIdentity, match="no identity"):
        Identity.load(path)


def test_no_file_and_no_place_for_one_are_said(tmp_path: Path):
    with pytest.raises(BadIdentity, match="identity create"):
        Identity.load(tmp_path / "none.json")
    with pytest.raises(BadIdentity, match="no file"):
        Identity.load(Path(os.devnull))
    (tmp_path / "file").touch()
    with pytest.raises(BadIdentity, match="cannot write"):
        Identity.generate().save(tmp_path / "file" / "identity.json", NOW)


def test_an_identity_does_not_show_its_secret(tmp_path: Path):
    assert SEED.hex() not in repr(Identity(SEED))


def test_what_one_seals_the_other_opens_and_so_does_a_plain_nacl_box():
    one, two = Identity.generate(), Identity(SEED)
    cipher = one.seal(two.public_key, b"hello", bytes(24))
    assert two.open(one.public_key, cipher, bytes(24)) == b"hello"
    # The sender can read what he sent: the shared key is that of both.
    assert one.open(two.public_key, cipher, bytes(24)) == b"hello"
    from nacl.signing import VerifyKey

    box = Box(SigningKey(SEED).to_curve25519_private_key(), VerifyKey(one.public_key).to_curve25519_public_key())
    assert box.decrypt(cipher, bytes(24)) == b"hello"


@given(st.binary(max_size=80), st.binary(max_size=30))
def test_what_was_not_sealed_for_us_is_a_wire_error(cipher: bytes, nonce: bytes):
    me, other = Identity(SEED), Identity(bytes(32))
    with pytest.raises(BadEnvelope):
        me.open(other.public_key, cipher, nonce)


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31)])
def test_nothing_is_sealed_for_a_key_that_nobody_can_own(key: bytes):
    with pytest.raises(BadAddress):
        Identity(SEED).seal(key, b"", bytes(24))


def test_ids_sort_by_time_and_carry_version_and_variant():
    ids = [uuid7(ms, bytes([b]) * 10) for ms, b in ((1, 255), (2, 0), (2, 255), (1_800_000_000_000, 0))]
    assert ids == sorted(ids)
    assert all(len(id) == 36 and id[14] == "7" and id[19] in "89ab" for id in ids)
    assert uuid7(0x017F22E279B0, bytes.fromhex("0cc318c4dc0c0c07398f")) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
