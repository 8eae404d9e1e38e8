"""The console of `posthouse up`: where it is said to be, that its token is never logged, and that it stops."""

from __future__ import annotations

import http.cookiejar
import json
import signal
import urllib.parse
import urllib.request

from tests.console.desk import Html
from tests.unit.cli.house import House


def opener() -> urllib.request.OpenerDirector:
    jar = http.cookiejar.CookieJar()
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(jar))


def log_in(url: str) -> urllib.request.OpenerDirector:
    """A browser that followed the address of the summary."""
    browser = opener()
    page = Html(browser.open(url).read().decode())
    token = next(given["value"] for _, given in page.tags if given.get("name") == "token")
    form = urllib.parse.urlencode({**page.forms["/login"], "token": token}).encode()
    browser.open(url.partition("?")[0], form)
    return browser


def test_up_says_where_to_log_in_and_that_works(house: House) -> None:
    house.post("m1", "m2")
    with house.up() as (process, summary):
        assert summary["console_login"].startswith(f"{summary['console']}/login?once=ph_once_")
        browser = log_in(summary["console_login"])
        page = Html(browser.open(summary["console"]).read().decode())
        assert page.number("live", "all.depth") == 2
        assert page.number("live", "online.agents") == 0
        # A viewer who looks on holds nobody up.
        stream = browser.open(f"{summary['console']}/api/v1/live")
        assert stream.readline() == b"event: snapshot\n"
        told = json.loads(stream.readline().removeprefix(b"data: "))
        assert told["all"]["depth"] == 2
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        stream.close()
    assert "ph_once_" not in errors
    assert summary["console"] in errors


def test_it_can_be_left_out(house: House) -> None:
    with house.up("--no-console", "--no-relay", "--no-gateway") as (_, summary):
        assert (summary["console"], summary["console_login"]) == (None, None)


def test_an_unsafe_place_stops_the_start_in_one_line(house: House) -> None:
    process = house.spawn("up", "--no-metrics", "--no-relay", "--no-gateway", "--set", "console.host=0.0.0.0")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    last = [line for line in errors.splitlines() if line.startswith("posthouse:")]
    assert len(last) == 1
    assert "needs console.tls_cert and console.tls_key" in last[0]


def test_a_restart_keeps_the_audit_log_and_ends_sessions(house: House) -> None:
    with house.up() as (_, summary):
        browser = log_in(summary["console_login"])
        house.run("mailbox", "pause", "alice", "--desk", "inbound")
        assert "mailbox.pause" in browser.open(f"{summary['console']}/audit").read().decode()
    with house.up() as (_, summary):
        with browser.open(f"{summary['console']}/audit") as answer:
            assert "/login" in answer.url
        assert "mailbox.pause" in log_in(summary["console_login"]).open(f"{summary['console']}/audit").read().decode()
