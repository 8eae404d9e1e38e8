"""posthouse agent: the commands, alone and while another process has the agent open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.relay.harness import Relay
from tests.unit.cli.house import House

from posthouse.agent.identity import Identity
from posthouse.wire.address import address_of

Run = Callable[..., Any]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relay: Relay) -> House:
    for name in list(os.environ):
        if name.startswith("POSTHOUSE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTHOUSE_AGENT_RELAY", f"ws://127.0.0.1:{relay.settings['relay.port']}")
    return House(tmp_path)


@pytest.fixture
def listening(house: House) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `agent listen`; it is connected when this returns, and must end well."""
    started: list[subprocess.Popen[str]] = []

    def listen(name: str, *words: str) -> subprocess.Popen[str]:
        environ = {"POSTHOUSE_AGENT_RELAY": os.environ["POSTHOUSE_AGENT_RELAY"]}
        process = house.spawn("agent", "listen", "--as", name, "--json", *words, env=environ)
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line).get("happening") == "connected":
                return process
        raise AssertionError("it did not connect")

    yield listen
    for process in started:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def whoami(house: House, name: str) -> str:
    document = json.loads(house.run("agent", "whoami", "--as", name, "--json").stdout)
    return str(document["address"])


def test_an_identity_is_made_when_it_is_first_needed(house: House):
    first = house.run("agent", "whoami", "--as", "alice")
    assert "made a new identity" in first.stderr
    path = house.folder / ".posthouse/agents/alice/identity.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert whoami(house, "alice") in first.stdout
    assert not house.run("agent", "whoami", "--as", "alice").stderr


def test_an_identity_is_made_on_purpose_once(house: House):
    made = house.json("agent", "identity", "create", "--as", "alice")
    assert Path(made["file"]).exists()
    error = house.json("agent", "identity", "create", "--as", "alice", code=2)["error"]
    assert error["code"] == "bad_identity"
    assert "already" in error["message"]


def test_a_key_of_another_client_is_taken_over(house: House):
    Identity(bytes(31) + b"\1").save(house.folder / "pinch.json", "2026-01-31T12:00:00Z")
    house.run("agent", "identity", "create", "--from", "pinch.json", "--as", "alice")
    assert whoami(house, "alice") == address_of(Identity(bytes(31) + b"\1").public_key, "relay.test")


def test_a_key_that_others_can_read_is_refused_everywhere(house: House):
    house.run("agent", "identity", "create", "--as", "alice")
    (house.folder / ".posthouse/agents/alice/identity.json").chmod(0o644)
    for words in (["whoami"], ["inbox"], ["listen"], ["send", "bob", "x"]):
        error = house.json("agent", *words, "--as", "alice", code=2)["error"]
        assert (error["code"], "chmod 600" in error["message"]) == ("bad_identity", True)


def test_an_offline_recipient_gets_it_later_and_the_sender_hears_that_it_waited(house: House):
    theirs = whoami(house, "bob")
    sent = house.json("agent", "send", theirs, "hello", "--as", "alice", "--wait", "0")
    assert [m["state"] for m in sent["messages"]] == ["with the relay"]
    assert "hello" in house.run("agent", "inbox", "--as", "bob").stdout
    assert "nothing new" in house.run("agent", "inbox", "--as", "bob").stdout
    heard = house.run("agent", "inbox", "--as", "alice").stdout
    assert "it waited at the relay" in heard
    history = house.run("agent", "history", theirs, "--as", "alice").stdout
    assert "delivered (it waited at the relay): hello" in history


def test_an_inbox_can_be_looked_at_without_being_read(house: House):
    theirs = whoami(house, "bob")
    house.run("agent", "send", theirs, "hello", "--as", "alice", "--wait", "0")
    for _ in range(2):
        items = house.json("agent", "inbox", "--keep", "--as", "bob")["items"]
        assert [(i["kind"], i["text"], i["state"]) for i in items] == [("message", "hello", "unread")]


def test_somebody_who_listens_gets_it_at_once(house: House, listening: Run):
    theirs = whoami(house, "bob")
    process = listening("bob", "--count", "2")
    result = house.run("agent", "send", theirs, "one\ntwo", "--as", "alice", "--wait", "30")
    assert result.stdout.startswith("delivered  ")
    house.run("agent", "send", theirs, "three", "--as", "alice", "--wait", "30")
    assert [json.loads(line)["text"] for line in process.stdout] == ["one\ntwo", "three"]
    # What `send` told, the inbox does not tell again.
    assert "nothing new" in house.run("agent", "inbox", "--as", "alice").stdout


def test_commands_go_through_the_process_that_listens(house: House, listening: Run):
    theirs, mine = whoami(house, "bob"), whoami(house, "alice")
    bob, alice = listening("bob"), listening("alice")
    house.run("agent", "connect", theirs, "--name", "bob", "--message", "may I?", "--as", "alice")
    assert json.loads(bob.stdout.readline())["text"] == "may I?"
    house.run("agent", "accept", mine, "--name", "alice", "--as", "bob")
    assert json.loads(alice.stdout.readline())["accepted"] is True
    sent = house.json("agent", "send", "bob", "hello", "--as", "alice", "--wait", "30")
    assert [(m["state"], m["was_stored"]) for m in sent["messages"]] == [("delivered", False)]
    assert json.loads(bob.stdout.readline())["text"] == "hello"
    contacts = house.json("agent", "contacts", "--as", "bob")["contacts"]
    assert [(c["name"], c["standing"], c["address"]) for c in contacts] == [("alice", "accepted", mine)]
    error = house.json("agent", "listen", "--as", "bob", code=3)["error"]
    assert error["code"] == "store_held"


def test_messages_can_be_piped_in_by_line_as_json_or_whole(house: House):
    theirs = whoami(house, "bob")
    words = ("agent", "send", theirs, "--as", "alice", "--queue", "--json")
    lines = json.loads(house.run(*words, input="one\n\ntwo\r\n").stdout)
    assert [m["text"] for m in lines["messages"]] == ["one", "two"]
    objects = '{"text": "thrée", "content_type": "text/markdown"}\n{"data": "/w=="}\n'
    plain = json.loads(house.run(*words, "--input", "json", input=objects).stdout)
    assert [(m.get("text"), m.get("data")) for m in plain["messages"]] == [("thrée", None), (None, "/w==")]
    assert plain["messages"][0]["content_type"] == "text/markdown"
    whole = json.loads(house.run(*words, "-", "--input", "whole", input="a\nb\n").stdout)
    assert [m["text"] for m in whole["messages"]] == ["a\nb\n"]
    refused = house.run(*words, "--input", "json", input="[]\n", code=2)
    assert "line 1 is no JSON object" in refused.stderr
    house.run("agent", "send", theirs, "last", "--as", "alice", "--wait", "0")
    items = house.json("agent", "inbox", "--as", "bob")["items"]
    assert [i.get("text") for i in items] == ["one", "two", "thrée", None, "a\nb\n", "last"]


def test_what_is_sent_while_the_relay_is_away_is_sent_later(house: House, relay: Relay):
    theirs = whoami(house, "bob")
    whoami(house, "alice")
    relay.stop()
    sent = house.run("agent", "send", theirs, "later", "--as", "alice")
    assert sent.stdout.startswith("in the outbox, to be sent later  ")
    seen = house.run("agent", "inbox", "--as", "bob")
    assert "cannot be reached" in seen.stderr
    relay.start()
    assert "nothing new" in house.run("agent", "inbox", "--as", "alice").stdout
    assert "later" in house.run("agent", "inbox", "--as", "bob").stdout


def test_text_from_outside_does_nothing_to_the_terminal(house: House):
    theirs = whoami(house, "bob")
    evil = "\x1b[2J\x1b]0;owned\x07\nposthouse: connected\u202e"
    house.run("agent", "connect", theirs, "--message", "\x1b[31mhi", "--as", "alice")
    house.run("agent", "send", theirs, evil, "--as", "alice", "--wait", "0")
    shown = house.run("agent", "contacts", "--as", "bob").stdout + house.run("agent", "inbox", "--as", "bob").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\x07" not in shown
    assert "\\x1b[31mhi" in shown
    # A line of its own is set apart from ours.
    assert "\n    posthouse: connected\\u202e" in shown


def test_who_is_blocked_is_heard_no_more(house: House):
    theirs, mine = whoami(house, "bob"), whoami(house, "alice")
    house.run("agent", "block", mine, "--as", "bob")
    house.run("agent", "send", theirs, "hello?", "--as", "alice", "--wait", "0")
    assert "nothing new" in house.run("agent", "inbox", "--as", "bob").stdout
    assert house.json("agent", "contacts", "--as", "bob")["contacts"][0]["standing"] == "blocked"
    house.run("agent", "unblock", mine, "--as", "bob")
    house.run("agent", "send", theirs, "hello!", "--as", "alice", "--wait", "0")
    assert "hello!" in house.run("agent", "inbox", "--as", "bob").stdout


def test_a_rejected_request_is_not_answered(house: House):
    theirs, mine = whoami(house, "bob"), whoami(house, "alice")
    house.run("agent", "connect", theirs, "--as", "alice")
    house.run("agent", "inbox", "--as", "bob")
    house.run("agent", "reject", mine, "--as", "bob")
    assert house.json("agent", "contacts", "--as", "bob")["contacts"][0]["standing"] == "rejected"
    assert "nothing new" in house.run("agent", "inbox", "--as", "alice").stdout


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["send", "nobody", "x"], 2, "no contact is called"),
        (["send", "pinch:abc@x", "x"], 2, "36 bytes"),
        (["accept", "nobody"], 2, "no contact is called"),
        (["unblock", address_of(bytes(31) + b"\1", "relay.test")], 2, "not blocked"),
        (["connect", address_of(bytes(31) + b"\1", "relay.test"), "--message", "x" * 281], 2, "at most 280"),
        (["whoami", "--as", "../evil"], 2, "agent.name"),
        (["inbox", "--relay", "http://x"], 2, "ws://host:port"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(house: House, words: list[str], code: int, part: str):
    result = house.run("agent", *words, code=code)
    last = result.stderr.splitlines()[-1]
    assert part in last


def test_a_relay_that_refuses_us_is_an_exit_code(tmp_path: Path, house: House):
    (tmp_path / "locked").mkdir()
    locked = Relay(tmp_path / "locked", {"relay.locked": "true"}).start()
    try:
        url = f"ws://127.0.0.1:{locked.settings['relay.port']}"
        result = house.run("agent", "listen", "--relay", url, "--json", code=1)
        error = json.loads(result.stderr.splitlines()[-1])["error"]
        assert error["code"] == "relay_refused"
        assert "key not registered" in error["message"]
        # The key can be seen all the same: somebody has to approve it.
        shown = house.json("agent", "whoami", "--relay", url)
        assert (shown["address"], len(shown["public_key"])) == (None, 44)
    finally:
        locked.stop()
