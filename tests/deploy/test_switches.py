"""What a server is made of: each part can be switched off, and each that is on says where it is."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.unit.cli.house import House

from posthouse.cli.up import PARTS


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    return House(tmp_path)


def test_every_part_can_be_switched_off_and_is_not_there_then(house: House) -> None:
    off = [f"--no-{part}" for part in (*PARTS, "metrics")]
    with house.up(*off, "--set", "journal.export_s=0") as (_, summary):
        told = {name: summary[name] for name in (*PARTS, "metrics", "api", "journal", "console_login")}
        assert told == dict.fromkeys(told)
        # What is left is the engine, and whoever operates it.
        house.run("message", "post", "alice", "--desk", "inbound", "--id", "m1")
    assert house.json("message", "show", "m1")["state"] == "ready"


def test_every_part_that_is_on_says_where_it_is_and_is_there(house: House) -> None:
    on = {
        "gateway.api_port": "0",
        "peer.enabled": "true",
        "peer.listen": "/ip4/127.0.0.1/tcp/0",
        "console.port": "0",
        "books.every_s": "0",
        "books.enabled": "true",
    }
    words = [word for name, value in on.items() for word in ("--set", f"{name}={value}")]
    with house.up(*words) as (_, summary):
        for name in ("relay", "api", "console", "metrics"):
            place = urlsplit(summary[name])
            assert place.hostname == "127.0.0.1", name
            socket.create_connection((place.hostname, place.port or 0), 10).close()
        (address,) = summary["peer_addresses"]
        assert address.endswith(f"/p2p/{summary['peer']}")
        socket.create_connection(("127.0.0.1", int(address.split("/")[4])), 10).close()
        assert summary["books"] == str(house.folder / ".posthouse/lake")
        assert summary["console_login"].startswith(f"{summary['console']}/login?once=")
