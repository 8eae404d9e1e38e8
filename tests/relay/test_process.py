"""The relay as a process: `posthouse relay` and `posthouse up`, signals, keys, and errors at the start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from typing import Any

import pytest
from tests.relay.harness import BINARY, HOST, Socket, frame
from tests.relay.test_tls import make_certificate
from tests.unit.cli.house import House

from posthouse.wire.envelope import MessageType


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_every_connection_with_1001_keeps_everything_and_exits_0(run: Any, number: int) -> None:
    relay = run()
    alice, bob = relay.agent("alice").connect(), relay.agent("bob").connect()
    carol = relay.agent("carol")
    sent = [alice.message(carol, str(n).encode()) for n in range(50)]
    alice.settled()
    log = relay.stop(number)
    assert alice.closed() == (1001, "relay is shutting down")
    assert bob.closed() == (1001, "relay is shutting down")
    assert '"stopped"' in log
    again = run()
    carol = again.agent("carol").connect()
    assert carol.expect(MessageType.QUEUE_STATUS).queue_status.pending_count == 50
    assert carol.receive_all(50) == sent


def test_what_was_sent_before_the_close_was_read_is_kept(run: Any) -> None:
    relay = run()
    alice = relay.agent("alice").connect()
    carol = relay.agent("carol")
    sent = [alice.envelope(carol) for _ in range(500)]
    alice.socket.sock.sendall(b"".join(frame(BINARY, one.SerializeToString()) for one in sent[:-1]))
    relay.process.send_signal(signal.SIGTERM)
    alice.send(sent[-1].SerializeToString())
    assert alice.closed() == (1001, "relay is shutting down")
    relay.process.communicate(timeout=20)
    assert run().agent("carol").connect().receive_all(501)[1:] == sent


def test_a_client_that_does_not_answer_the_close_holds_up_nothing(run: Any) -> None:
    relay = run()
    silent = relay.agent("silent").connect()
    # It looks at the time that this takes.
    relay.stop()
    assert silent.closed()[0] == 1001


def test_up_starts_the_relay_and_says_where(house: House) -> None:
    with house.up("--set", "relay.public_host=relay.example.com") as (_, summary):
        assert summary["relay"].startswith("ws://127.0.0.1:")
        assert summary["relay_host"] == "relay.example.com"
        url = summary["relay"].replace("ws://", "http://").replace("/ws", "/health")
        assert json.load(urllib.request.urlopen(url, timeout=10))["connections"] == 0
        page = urllib.request.urlopen(summary["metrics"], timeout=10).read().decode()
        assert "posthouse_relay_connections 0.0" in page
    with house.up("--no-relay") as (_, summary):
        assert summary["relay"] is None


def failed(process: subprocess.Popen[str], code: int) -> str:
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    return errors.splitlines()[-1]


def test_a_port_that_is_taken_is_a_clear_error(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failed(house.spawn("relay", "--relay-port", str(port), "--no-metrics"), 2)
    assert error == f"posthouse: the relay cannot listen on 127.0.0.1 port {port}: it is taken (relay.host, relay.port)"


def test_a_missing_extra_is_a_clear_error_or_a_warning(house: House) -> None:
    (house.folder / "picows.py").write_text("raise ModuleNotFoundError(name='picows')\n")
    env = {"PYTHONPATH": str(house.folder)}
    error = failed(house.spawn("relay", "--no-metrics", env=env), 2)
    assert error == "posthouse: the relay needs picows: pip install posthouse[relay]"
    process = house.spawn("up", "--no-metrics", "--json", env=env)
    assert house._summary(process)["relay"] is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "the relay is not started: the relay needs picows" in errors


def test_the_variables_of_the_go_relay_are_honoured(run: Any, house: House) -> None:
    relay = run(
        POSTHOUSE_RELAY_PORT="",
        PINCH_RELAY_PORT="0",
        PINCH_RELAY_PUBLIC_HOST=HOST,
        PINCH_RELAY_DB="pinch.db",
        PINCH_RELAY_QUEUE_MAX="2",
        PINCH_RELAY_ALLOWED_ORIGINS="https://a.example",
    )
    assert relay.summary["relay_host"] == HOST
    assert (house.folder / "pinch.db").exists()
    assert Socket(relay.port, headers={"Origin": "https://a.example"}).status == 101
    alice = relay.agent("alice").connect()
    bob = relay.agent("bob")
    sent = [alice.message(bob) for _ in range(3)]
    (full,) = (came for came in alice.settled() if came.type == MessageType.QUEUE_FULL)
    assert full.message_id == sent[-1].message_id
    assert "full" in full.queue_full.reason
    assert "2" in full.queue_full.reason


def test_a_go_relays_own_file_is_named_as_such(house: House) -> None:
    (house.folder / "go.db").write_bytes(bytes(16) + 0xED0CDAED.to_bytes(4, "little") + bytes(4_000))
    error = failed(house.spawn("relay", "--no-metrics", env={"PINCH_RELAY_DB": "go.db"}), 2)
    assert "is the database of a Go relay" in error
    assert "PINCH_RELAY_DB" in error
    assert "posthouse import pinch" in error


def test_a_public_host_that_nobody_chose_is_warned_of_where_others_can_connect(run: Any) -> None:
    assert "set relay.public_host" in run("--set", "relay.host=*").stop()
    assert "set relay.public_host" not in run().stop()


def test_sighup_reads_the_certificate_again(run: Any, house: House) -> None:
    cert, key = make_certificate(house.folder, "first")
    relay = run("--set", f"relay.tls_cert={cert}", "--set", f"relay.tls_key={key}")
    make_certificate(house.folder, "second")
    os.replace(house.folder / "second.pem", cert)
    os.replace(house.folder / "second.key", key)
    relay.process.send_signal(signal.SIGHUP)
    assert "the certificate was read again" in relay.stop()


def test_keys_are_approved_and_revoked_and_a_revoked_keys_socket_is_closed_at_once(run: Any, house: House) -> None:
    relay = run("--set", "relay.locked=true")
    alice = relay.agent("alice")
    assert alice.authenticate().error_message == "key not registered"
    assert house.json("relay", "keys", "ls")["keys"] == []
    done = house.json("relay", "keys", "approve", alice.address)
    assert (done["state"], done["was"], done["changed"]) == ("approved", None, True)
    alice.connect()
    done = house.json("relay", "keys", "revoke", done["public_key"])
    assert (done["state"], done["was"], done["changed"]) == ("revoked", "approved", True)
    assert alice.closed() == (1008, "key not registered")
    assert alice.authenticate().error_message == "key not registered"
    (key,) = house.json("relay", "keys", "ls", "--state", "revoked")["keys"]
    assert key["by"].startswith("operator:")
    assert not house.json("relay", "keys", "revoke", alice.public_key.hex())["changed"]
    assert "may connect" in house.run("relay", "keys", "approve", alice.address).stdout
    alice.connect()


def test_a_revoked_key_is_kept_out_of_an_open_relay_too(run: Any, house: House) -> None:
    relay = run()
    alice, bob = relay.agent("alice").connect(), relay.agent("bob").connect()
    house.run("relay", "keys", "revoke", alice.address)
    assert alice.closed() == (1008, "key not registered")
    relay.stop()
    relay = run()
    assert not relay.agent("alice").authenticate().success
    assert relay.agent("bob").authenticate().success
    bob.socket.close()


@pytest.mark.parametrize("key", ["nonsense", "pinch:xyz@localhost", "AAAA", ""])
def test_what_is_no_key_is_refused(house: House, key: str) -> None:
    with house.up():
        house.run("relay", "keys", "approve", key, code=2)
