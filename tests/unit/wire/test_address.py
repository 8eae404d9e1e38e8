"""Addresses: one spelling for one key, and a reason for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from posthouse.errors import BadAddress, WireError
from posthouse.wire.address import Address, address_of, is_host, parse_address

KEY = bytes(SigningKey(bytes(31) + b"\1").verify_key)
VECTOR = "pinch:anSpcKpdMpR5GgdWktTxJHrow4AapjhmPGBfj3F1qr3HEbMcn@test.relay.example.com"


def test_the_published_vector_comes_out_and_goes_back():
    assert address_of(KEY, "test.relay.example.com") == VECTOR
    assert parse_address(VECTOR) == Address(KEY, "test.relay.example.com")


@given(st.binary(min_size=32, max_size=32), st.integers(0, 32))
def test_every_key_survives_with_its_leading_zeros(key: bytes, zeros: int):
    key = bytes(zeros) + key[zeros:]
    text = address_of(key, "relay.example:8080")
    assert parse_address(text) == Address(key, "relay.example:8080")
    assert text.removeprefix("pinch:").startswith("1" * zeros)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "pinch:<key>@<host>"),
        ("pinch:", "pinch:<key>@<host>"),
        (VECTOR.removeprefix("pinch:"), "pinch:<key>@<host>"),
        (VECTOR.upper(), "pinch:<key>@<host>"),
        (VECTOR.partition("@")[0], "pinch:<key>@<host>"),
        (VECTOR.partition("@")[0] + "@", "no host"),
        (VECTOR + "@other", "no host"),
        (VECTOR + "/path", "no host"),
        (VECTOR + " ", "no host"),
        (VECTOR + "\n", "no host"),
        (VECTOR + "ü", "no host"),
        (VECTOR + "x" * 256, "no host"),
        (VECTOR.replace("anSp", "anS0"), "not a character of base58"),
        (VECTOR.replace("anSp", "anSl"), "not a character of base58"),
        (VECTOR.replace("anSp", "anSq"), "checksum"),
        (VECTOR.replace("Mcn@", "Mcm@"), "checksum"),
        ("pinch:1" + VECTOR.removeprefix("pinch:"), "37"),
        ("pinch:@host", "at most 50"),
        ("pinch:" + "1" * 1_000_000 + "@host", "at most 50"),
        ("pinch:a@host", "36 bytes"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, words: str):
    with pytest.raises(BadAddress) as caught:
        parse_address(text)
    assert words in str(caught.value)
    assert caught.value.code == "bad_address"
    assert len(str(caught.value)) < 200


@given(st.text(max_size=200) | st.from_regex(r"pinch:[1-9A-HJ-NP-Za-km-z]{1,50}@[a-z.]{1,20}", fullmatch=True))
def test_any_text_is_an_address_or_a_wire_error(text: str):
    try:
        address = parse_address(text)
    except WireError:
        return
    assert address_of(address.public_key, address.host) == text


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_size_has_no_address(key: bytes):
    with pytest.raises(BadAddress):
        address_of(key, "host")


def test_a_host_is_printable_ascii_without_what_would_part_it():
    assert all(map(is_host, ["localhost", "localhost:8080", "[::1]:8080", "relay-1.example.com", "a" * 255]))
    assert not any(map(is_host, ["", "a b", "a@b", "a/b", "a\n", "\x1b[2J", "bücher.example", "a" * 256]))
