"""TLS: by certificate and key, read again on request, never replaced by something broken."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import DEADLINE_S, HOST, Relay

from posthouse.config import Given, load
from posthouse.errors import ConfigError
from posthouse.relay import setup
from posthouse.relay.tls import Certificate


def make_certificate(folder: Path, name: str, host: str = f"DNS:{HOST}") -> tuple[Path, Path]:
    """A certificate for the relay's host, or another, that signs itself."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    places = ["-keyout", str(key), "-out", str(cert)]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={host}"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", *places, *names], check=True, capture_output=True
    )
    return cert, key


def trusting(*certs: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for cert in certs:
        context.load_verify_locations(cert)
    return context


def serial(relay: Relay) -> bytes:
    """The certificate that a new handshake gets."""
    context = ssl._create_unverified_context()
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as plain:
        with context.wrap_socket(plain, server_hostname=HOST) as secure:
            found = secure.getpeercert(binary_form=True)
            assert found
            return found


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path, "first")


def test_agents_talk_over_tls(make_relay: MakeRelay, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    relay = make_relay({"relay.tls_cert": str(cert), "relay.tls_key": str(key)})
    assert relay.server.address.startswith("wss://")
    alice, bob = (relay.agent(name, tls=trusting(cert)).connect().live() for name in ("alice", "bob"))
    for size in (10, 60_000):
        sent = alice.message(bob, bytes(size))
        assert bob.receive() == sent
    alice.socket.send(2, bytes(200_000))
    assert alice.closed()[0] == 1009
    bob.leave()
    relay.until(lambda: not relay.house.online)


def test_a_plain_client_gets_nowhere_and_disturbs_nobody(make_relay: MakeRelay, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    relay = make_relay({"relay.tls_cert": str(cert), "relay.tls_key": str(key)})
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    relay.agent("alice", tls=trusting(cert)).connect()


def test_a_new_certificate_is_taken_for_new_handshakes_and_a_broken_one_is_not(
    make_relay: MakeRelay, certificate: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate
    relay = make_relay({"relay.tls_cert": str(cert), "relay.tls_key": str(key)})
    old = relay.agent("alice", tls=trusting(cert)).connect().live()
    first = serial(relay)
    new_cert, new_key = make_certificate(tmp_path, "second")
    shutil.copy(new_cert, cert)
    # The key is still the old one's: together they are no certificate.
    with caplog.at_level(logging.ERROR, "posthouse.relay"):
        relay.on_loop(relay.server.reload)
    assert "the old one stays" in caplog.text
    assert serial(relay) == first
    shutil.copy(new_key, key)
    relay.on_loop(relay.server.reload)
    assert serial(relay) != first
    new = relay.agent("bob", tls=trusting(new_cert)).connect().live()
    sent = old.message(new)
    assert new.receive() == sent


@pytest.mark.parametrize("broken", ["missing", "junk", "encrypted"])
def test_a_certificate_that_cannot_be_used_is_an_error_that_names_it(
    tmp_path: Path, certificate: tuple[Path, Path], broken: str
) -> None:
    cert, key = certificate
    if broken == "missing":
        key.unlink()
    elif broken == "junk":
        key.write_text("junk")
    else:
        sealed = ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", str(key), "-out", str(key)]
        subprocess.run(sealed, check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"relay\.tls_key"):
        Certificate(cert, key)


def test_a_certificate_without_a_key_is_an_error(tmp_path: Path) -> None:
    config = load({}, tmp_path, {"relay.tls_cert": Given("cert.pem", "test")})
    with pytest.raises(ConfigError, match=r"relay\.tls_key is not set"):
        setup.listen(config)
