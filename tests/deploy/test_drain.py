"""A server that is told to stop: it finishes what is under way, says so, and takes nothing new."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.unit.cli.house import House

HANDLER = """
def handle(work):
    with open("begun", "w"):      # whoever waits for it reads on
        pass
    with open("go"):              # and is waited for here
        return f"late answer to {work.text}"
"""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "late.py").write_text(HANDLER)
    return House(tmp_path)


def status(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_sigterm_lets_a_handler_finish_and_says_meanwhile_that_nothing_new_should_come(house: House) -> None:
    words = ("--no-relay", "--set", "gateway.handler=python:late:handle")
    with house.up(*words) as (process, summary):
        health = summary["metrics"].replace("/metrics", "/health")
        assert status(f"{health}/ready") == (200, "ok\n")
        body = json.dumps({"channel": "net", "conversation": "ann", "text": "good day"})
        post = ("message", "post", "default", "--desk", "inbound", "--id", "m1", "--sender", "net/default/ann")
        house.run(*post, "--lane", "ann", "--body", body)
        Path("begun").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["message"] == "stopping (SIGTERM)":
                break
        assert status(f"{health}/ready") == (503, "the server is stopping\n")
        assert status(f"{health}/live") == (200, "ok\n")
        Path("go").write_text("")
        assert process.wait(30) == 0
    assert house.json("message", "show", "m1")["state"] == "delivered"
    assert house.json("mailbox", "ls", "--desk", "outbound")["mailboxes"][0]["depth"] == 1
