"""Keys, peer ids and addresses: forms that other implementations gave, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from posthouse.libp2p import base58, varint
from posthouse.libp2p.errors import BadKey, BadMultiaddr, BadPeerId, VarintError
from posthouse.libp2p.key import ECDSA, RSA, SECP256K1, PrivateKey, PublicKey
from posthouse.libp2p.multiaddr import Multiaddr, tcp
from posthouse.libp2p.peer_id import PeerId

# The Ed25519 key of libp2p's specification of peer ids, and the id that it has in base58.
SPEC_KEY = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
SPEC_PUBLIC = bytes.fromhex("080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")


def test_a_key_of_the_specification_is_read_and_written_alike() -> None:
    key = PrivateKey.from_bytes(SPEC_KEY)
    assert key.to_bytes() == SPEC_KEY
    assert key.public.encoded == SPEC_PUBLIC
    assert PublicKey.from_bytes(SPEC_PUBLIC) == key.public
    # Old programs wrote the public key twice.
    old = bytes((0x08, 1, 0x12, 96)) + SPEC_KEY[4:] + SPEC_KEY[36:]
    assert PrivateKey.from_bytes(old).to_bytes() == SPEC_KEY


def test_a_peer_id_holds_its_ed25519_key() -> None:
    key = PrivateKey.from_bytes(SPEC_KEY)
    peer = PeerId.of(key.public)
    assert str(peer).startswith("12D3KooW")
    assert peer.raw == b"\x00\x24" + SPEC_PUBLIC
    assert PeerId.parse(str(peer)) == peer
    assert peer.public_key() == key.public
    assert peer.is_of(key.public)
    assert {peer: 1}[PeerId(peer.raw)] == 1


def test_peer_ids_are_read_in_every_form() -> None:
    long = PeerId.parse("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
    assert long.public_key() is None
    as_cid = "bafzbeie5745rpv2m6tjyuugywy4d5ewrqgqqhfnf445he3omzpjbx5xqxe"
    assert str(PeerId.parse(as_cid)) == "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize("text", ["", "12D3KooW", "0OIl", "b", "bafkqaaa", "Qm" + "1" * 200, "\N{SNOWMAN}", "z" * 20])
def test_what_is_no_peer_id_is_refused(text: str) -> None:
    with pytest.raises(BadPeerId):
        PeerId.parse(text)


def test_signatures_of_every_kind_of_key_are_verified() -> None:
    mine = PrivateKey.generate()
    assert mine.public.verifies(mine.sign(b"x"), b"x")
    assert not mine.public.verifies(mine.sign(b"x"), b"y")
    assert not mine.public.verifies(b"", b"x")

    slow = rsa.generate_private_key(65_537, 2_048)
    der = slow.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public = PublicKey.from_bytes(PublicKey(RSA, der).encoded)
    assert public.verifies(slow.sign(b"x", padding.PKCS1v15(), SHA256()), b"x")
    assert not public.verifies(b"nonsense", b"x")
    assert PeerId.of(public).public_key() is None
    assert PeerId.of(public).is_of(public)

    for curve, kind in ((ec.SECP256K1(), SECP256K1), (ec.SECP256R1(), ECDSA)):
        other = ec.generate_private_key(curve)
        if kind == SECP256K1:
            data = other.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        else:
            data = other.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        public = PublicKey(kind, data)
        assert public.verifies(other.sign(b"x", ec.ECDSA(SHA256())), b"x")
        assert not public.verifies(other.sign(b"x", ec.ECDSA(SHA256())), b"y")


def test_short_rsa_keys_are_refused() -> None:
    weak = rsa.generate_private_key(65_537, 1_024).public_key()
    with pytest.raises(BadKey, match="1024 bits"):
        PublicKey(RSA, weak.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_key_or_refused(data: bytes) -> None:
    for make in (PublicKey.from_bytes, PrivateKey.from_bytes):
        try:
            make(data)
        except BadKey:
            pass
    try:
        PeerId(data).public_key()
    except BadPeerId:
        pass


def test_key_files_are_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "node.key"
    key = PrivateKey.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 68
    assert PrivateKey.load_or_create(path).to_bytes() == key.to_bytes()
    with pytest.raises(BadKey, match="already"):
        PrivateKey.generate().save(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["node.key"]
    path.chmod(0o640)
    with pytest.raises(BadKey, match="chmod 600"):
        PrivateKey.load(path)
    path.chmod(0o600)
    for damaged in (b"", SPEC_KEY[:-1], SPEC_KEY[:-1] + b"\0", b"\x08\x00" + SPEC_KEY[2:], os.urandom(5_000)):
        path.write_bytes(damaged)
        with pytest.raises(BadKey, match="no key file"):
            PrivateKey.load(path)
    with pytest.raises(BadKey, match="cannot read"):
        PrivateKey.load(tmp_path / "none.key")
    with pytest.raises(BadKey, match="cannot read"):
        PrivateKey.load(tmp_path)
    with pytest.raises(BadKey, match="no file"):
        PrivateKey.load(Path("/dev/null"))


def test_a_key_shows_nothing_of_itself() -> None:
    key = PrivateKey.from_bytes(SPEC_KEY)
    assert key.seed().hex()[:8] not in repr(key)


@given(st.binary(max_size=60))
def test_base58_there_and_back(data: bytes) -> None:
    assert base58.decode(base58.encode(data)) == data


def test_base58_of_the_draft() -> None:
    assert base58.encode(b"Hello World!") == "2NEpo7TZRRrLZSi2U"
    assert base58.encode(bytes.fromhex("0000287fb4cd")) == "11233QC4"


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_varints_there_and_back(number: int) -> None:
    data = varint.encode(number)
    assert varint.decode(b"?" + data + b"?", 1) == (number, 1 + len(data))
    assert varint.decode(data[:-1]) is None


@pytest.mark.parametrize("data", [b"\x80\x00", b"\x81\x80\x00", b"\xff" * 9, b"\x80" * 9 + b"\x01"])
def test_varints_that_are_too_long_are_refused(data: bytes) -> None:
    with pytest.raises(VarintError):
        varint.decode(data)


PEER = str(PeerId.of(PrivateKey.from_bytes(SPEC_KEY).public))


@pytest.mark.parametrize(
    ("text", "hexed"),
    [
        ("/ip4/127.0.0.1/tcp/4001", "047f000001060fa1"),
        ("/ip6/::1/tcp/0", "2900000000000000000000000000000001060000"),
        ("/dns4/example.org/tcp/443/wss", "360b6578616d706c652e6f72670601bbde03"),
        ("/ip4/1.2.3.4/udp/4001/quic-v1", "0401020304910" + "20fa1cd03"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit", None),
    ],
)
def test_addresses_there_and_back(text: str, hexed: str | None) -> None:
    address = Multiaddr.parse(text)
    assert str(address) == text
    assert Multiaddr.from_bytes(address.to_bytes()) == address
    if hexed is not None:
        assert address.to_bytes().hex() == hexed


def test_only_plain_tcp_leads_somewhere() -> None:
    address = Multiaddr.parse(f"/ip4/127.0.0.1/tcp/4001/ipfs/{PEER}")
    assert address.endpoint == ("ip4", "127.0.0.1", 4001)
    assert str(address.peer_id) == PEER
    assert str(address.bare()) == "/ip4/127.0.0.1/tcp/4001"
    assert address.bare().at(PeerId.parse(PEER)) == address
    assert address.bare().peer_id is None
    assert tcp("::1", 7).endpoint == ("ip6", "::1", 7)
    assert tcp("example.org", 7).endpoint == ("dns", "example.org", 7)
    for text in ("/ip4/1.2.3.4/udp/1/quic-v1", "/ip4/1.2.3.4/tcp/1/ws", f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit"):
        assert Multiaddr.parse(text).endpoint is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ip4/1.2.3.4",
        "/",
        "/ip4",
        "/ip4/1.2.3",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3.4/tcp/x",
        "/ip4/1.2.3.4/tcp/²",
        "/carrier-pigeon/7",
        "/ip4/1.2.3.4/tcp/1/p2p/QmNo",
        "/dns/a b/tcp/1",
        "/ws" * 17,
        "/dns/" + "x" * 2_000,
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadMultiaddr):
        Multiaddr.parse(text)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_address_or_refused(data: bytes) -> None:
    try:
        address = Multiaddr.from_bytes(data)
    except BadMultiaddr:
        return
    assert Multiaddr.parse(str(address)) == address
