"""posthouse alerts, with and without a server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.unit.cli.house import House

RULES = """
[gateway]
alert = "command:{python} {script}"

[alert.backlog]
on = "depth"
desk = "inbound"
above = 1
for_s = 0

[alert.books]
on = "books"
"""


@pytest.fixture
def told(house: House) -> Path:
    """Where the command that is told writes what it was told."""
    script, told = house.folder / "tell.py", house.folder / "told.jsonl"
    script.write_text(f"import sys\nopen({str(told)!r}, 'a').write(sys.stdin.read())\n")
    (house.folder / "posthouse.toml").write_text(RULES.format(python=sys.executable, script=script))
    return told


def test_rules_are_listed_with_what_they_see(house: House, told: Path) -> None:
    house.post("m1", "m2")
    backlog, books = house.json("alerts", "ls")["alerts"]
    assert (backlog["rule"], backlog["on"], backlog["desk"], backlog["value"]) == ("backlog", "depth", "inbound", 2)
    assert (backlog["above"], backlog["state"], backlog["since"]) == (1, "quiet", None)
    assert (books["value"], books["trouble"].startswith("there are no books in")) == (None, True)
    text = house.run("alerts", "ls").stdout
    assert "backlog  depth  inbound" in text
    assert "books cannot be judged: there are no books" in text


def test_a_server_judges_and_tells_and_a_trial_is_told_too(house: House, told: Path) -> None:
    house.post("m1", "m2")
    with house.up("--set", "gateway.alert_every_s=0.1"):
        assert "was told by alert/default." in house.run("alerts", "test", "backlog", "--wait", "60").stdout
        assert house.json("alerts", "test", "--wait", "60")["state"] == "delivered"
        firing = house.json("alerts", "ls")["alerts"][0]
    assert (firing["state"], firing["notices"]) == ("firing", 1)
    text = told.read_text()
    assert '"state":"firing"' in text
    assert text.count("nothing is wrong") == 2
    # It stands as the server left it.
    assert house.json("alerts", "ls")["alerts"][0]["state"] == "firing"


def test_a_server_without_a_gateway_says_that_nobody_judges(house: House, told: Path) -> None:
    server = house.spawn("up", "--no-gateway", "--no-relay", "--no-console", "--no-metrics", "--json")
    assert server.stdout is not None
    assert server.stdout.readline() == "{\n"
    server.terminate()
    _, said = server.communicate(timeout=60)
    assert "alert rules are not judged: the gateway does that, and it is off" in said


def test_a_trial_without_a_server_is_kept(house: House, told: Path) -> None:
    house.post("m1")
    assert "is kept and not delivered yet" in house.run("alerts", "test", "--wait", "0").stdout
    assert not told.exists()


def test_what_cannot_be_told_is_refused(house: House) -> None:
    assert house.json("alerts", "test", code=1)["error"]["message"] == "nobody would be told: gateway.alert is not set"
    toml = house.folder / "posthouse.toml"
    toml.write_text('[alert.dead]\non = "dead"\naccount = "email/ops"\n')
    assert "no channel is email/ops" in house.run("alerts", "test", "dead", code=1).stderr
    assert "did you mean dead?" in house.run("alerts", "test", "deed", code=1).stderr
    server = house.spawn("up", "--no-metrics")
    _, said = server.communicate(timeout=60)
    assert server.returncode == 2
    assert "alert.dead is told by 'email/ops', and no channel is that account" in said
    toml.write_text('[alert.dead]\non = "deaf"\n')
    assert "alert.dead.on must be one of" in house.run("alerts", "ls", code=2).stderr
    toml.write_text("")
    assert "No alert rules are configured" in house.run("alerts", "ls").stdout
