"""What is signed, byte for byte, and whose signature holds."""

from __future__ import annotations

import pytest
from nacl.signing import SigningKey

from posthouse.errors import BadEnvelope
from posthouse.wire.auth import challenge_bytes, confirm_bytes, is_signed


def test_a_challenge_is_signed_with_its_purpose_its_host_and_its_nonce():
    nonce = bytes(range(32))
    assert challenge_bytes("Relay.Example", nonce) == b"pinch-auth-v1\0Relay.Example\0" + nonce


def test_a_confirmation_is_signed_with_the_id_and_the_time_in_eight_bytes():
    assert confirm_bytes(b"id", 1) == b"id\0\0\0\0\0\0\0\1"
    assert confirm_bytes(b"", -1) == b"\xff" * 8


def test_a_time_that_eight_bytes_do_not_hold_is_a_wire_error():
    with pytest.raises(BadEnvelope):
        confirm_bytes(b"id", 1 << 63)


def test_a_signature_holds_for_its_key_and_its_bytes_alone():
    key, other = SigningKey.generate(), SigningKey.generate()
    signature = key.sign(b"data").signature
    assert is_signed(bytes(key.verify_key), signature, b"data")
    assert not is_signed(bytes(key.verify_key), signature, b"date")
    assert not is_signed(bytes(other.verify_key), signature, b"data")
    assert not is_signed(bytes(key.verify_key), signature[:-1], b"data")
    assert not is_signed(bytes(key.verify_key)[:-1], signature, b"data")
    assert not is_signed(b"", b"", b"")


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), bytes.fromhex("ec" + "ff" * 30 + "7f")])
def test_a_key_of_small_order_signs_nothing(key: bytes):
    # With such a key one signature would hold for any bytes.
    assert not is_signed(key, bytes(64), b"data")
    assert not is_signed(key, key + bytes(32), b"data")
