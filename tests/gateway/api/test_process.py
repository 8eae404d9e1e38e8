"""The API of a running server, with tokens from the command line."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.gateway.api.desk import HELLO
from tests.unit.cli.house import House


def ask(url: str, token: str, value: Any = None) -> tuple[int, Any]:
    data = None if value is None else json.dumps(value).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_another_program_hands_over_a_message_and_waits_for_the_answer(house: House) -> None:
    words = ("--no-relay", "--set", "gateway.api_port=0", "--set", "gateway.handler=echo")
    token = ""
    with house.up(*words) as (_, summary):
        url, metrics = summary["api"], summary["metrics"]
        assert ask(f"{url}/v1/inbound", "ph_wrong", HELLO)[0] == 401
        token = house.json("token", "add", "node", "--scope", "inbound", "--scope", "status")["token"]
        assert ask(f"{url}/v1/inbound", token, HELLO)[0] == 201
        code, answer = ask(f"{url}/v1/inbound/m1?wait_s=30", token)
        assert (code, answer["status"]) == (200, "completed")
        assert answer["replies"][0]["parts"] == [{"text": "hello"}]
        assert [row["name"] for row in house.json("token", "ls")["tokens"]] == ["node"]
        with urllib.request.urlopen(metrics, timeout=60) as response:
            page = response.read().decode()
        assert 'posthouse_gateway_api_requests_total{outcome="unauthorized"} 1.0' in page
        assert 'posthouse_gateway_api_requests_total{outcome="ok"} 2.0' in page
    with house.up(*words) as (_, summary):
        # The token and the message are known after a restart.
        code, answer = ask(f"{summary['api']}/v1/inbound", token, HELLO)
        assert (code, answer["outcome"]) == (200, "duplicate")
        house.run("token", "revoke", "node")
        assert ask(f"{summary['api']}/v1/inbound", token, HELLO)[0] == 401


def test_tokens_are_checked(house: House) -> None:
    house.post("a")
    assert "scopes are some of" in house.json("token", "add", "x", "--scope", "everything", code=2)["error"]["message"]
    assert "a token's name" in house.json("token", "add", "X Y", "--scope", "events", code=2)["error"]["message"]
    shown = house.run("token", "add", "x", "--scope", "events").stdout.strip()
    assert shown.startswith("ph_")
    assert house.json("token", "add", "x", "--scope", "events", code=1)["error"]["code"] == "exists"
    assert shown not in house.run("token", "ls").stdout
    assert house.json("token", "revoke", "nobody", code=1)["error"]["code"] == "not_found"
