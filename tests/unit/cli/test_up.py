"""The server as a process: it serves, is alone, stops cleanly, and commands do the same with and without it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.cli.house import House

from posthouse.cli import main, up
from posthouse.cli.session import Session
from posthouse.errors import StoreFailed
from posthouse.mailbox.command import Command, Start
from posthouse.mailbox.outcome import Outcome
from posthouse.stores.sqlite import SqliteStore

READS: list[list[str]] = [
    ["mailbox", "ls"],
    ["mailbox", "ls", "--contains", "ali", "--limit", "1"],
    ["mailbox", "show", "alice"],
    ["mailbox", "show", "nobody"],
    ["lane", "why", "alice", "x"],
    ["lane", "why", "alice", ""],
    ["lane", "why", "alice"],
    ["message", "show", "m1"],
    ["message", "show", "nothing"],
    ["message", "history", "m1"],
    ["dead", "ls"],
    ["dead", "ls", "--each"],
    ["dead", "ls", "--state", "parked"],
    ["dead", "show", "d1"],
    ["dead", "redrive", "--dry-run"],
    ["mailbox", "purge", "alice", "--dry-run"],
    ["mailbox", "ls", "--desk", "a\x1bb"],
    ["dead", "ls", "--since", "2020-01-01", "--until", "2020-01-02"],
]
WRITES: list[list[str]] = [
    ["mailbox", "pause", "alice"],
    ["mailbox", "pause", "alice"],
    ["mailbox", "resume", "alice"],
    ["message", "park", "m1"],
    ["message", "unpark", "m1"],
    ["message", "cancel", "m1", "--yes"],
    ["message", "cancel", "m1", "--yes"],
    ["message", "post", "bob", "--desk", "inbound", "--id", "new", "--body", "x"],
    ["message", "post", "bob", "--desk", "inbound", "--id", "new", "--body", "x"],
    ["message", "post", "bob", "--desk", "nope", "--id", "new"],
    ["dead", "redrive", "--id", "d1"],
    ["dead", "redrive", "--error", "nothing like it"],
    ["dead", "purge", "--yes"],
    ["lane", "unblock", "alice", "x"],
    ["mailbox", "purge", "alice", "--yes"],
    ["mailbox", "purge", "nobody", "--yes"],
]


def fill(house: House) -> None:
    house.post("d1", "d2", "d3")
    house.kill("d1", "d2", error="timeout after 5 s")
    house.post("m1", "m2", lane="x")
    house.post("p1", mailbox="parked")
    house.run("message", "park", "p1")
    house.run("journal", "export")
    house.run("mailbox", "pause", "alice", "--lane", "x")


def answers(house: House, calls: list[list[str]]) -> list[Any]:
    found = []
    for words in calls:
        result = CliRunner().invoke(main, [*words, "--json"])
        found.append((words, result.exit_code, json.loads(result.stdout or result.stderr)))
    return found


def test_commands_answer_the_same_with_and_without_a_server(house: House) -> None:
    fill(house)
    alone = answers(house, READS)
    events = house.json("journal", "tail", "-n", "1000")["events"]
    with house.up():
        served = answers(house, READS)
        # The server's own start is one more.
        assert house.json("journal", "tail", "-n", "1000")["events"][:-1] == events
    assert served == alone
    assert {code for _, code, _ in alone} == {0, 1}


def test_commands_change_the_same_with_and_without_a_server(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(house)
    other = House(tmp_path / "other")
    shutil.copytree(house.folder / ".posthouse", other.folder / ".posthouse")
    alone = answers(house, WRITES)
    monkeypatch.chdir(other.folder)
    with other.up():
        served = answers(other, WRITES)
    assert served == alone


def test_it_says_what_it_serves_and_serves_it(house: House) -> None:
    with house.up() as (process, summary):
        assert summary["pid"] == process.pid
        assert summary["store"] == str(house.folder / ".posthouse/posthouse.db")
        assert summary["control"] == str(house.socket)
        assert stat.S_IMODE(os.stat(house.socket).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(house.folder / ".posthouse").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(summary["store"]).st_mode) & 0o077 == 0
        house.run("message", "post", "alice", "--desk", "inbound", "--id", "m1")
        page = urllib.request.urlopen(summary["metrics"], timeout=10).read().decode()
        assert 'posthouse_messages{desk="inbound",state="ready"} 1.0' in page
        ready = summary["metrics"].replace("/metrics", "/health/ready")
        assert urllib.request.urlopen(ready, timeout=10).status == 200
        assert {each["status"] for each in house.json("doctor")["checks"]} == {"ok"}
    assert not house.socket.exists()
    assert house.json("message", "show", "m1")["state"] == "ready"


def test_people_at_a_terminal_and_programs_each_get_their_summary_and_log(house: House) -> None:
    process = house.spawn("up", "--no-metrics", "--log-format", "text")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("Posthouse ")
    assert f"(process {process.pid})" in first
    while not process.stdout.readline().startswith("  desks"):
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "posthouse.up: stopping (SIGINT)" in errors
    assert errors.rstrip().endswith("stopped")


def test_logs_are_json_where_no_terminal_is(house: House) -> None:
    with house.up() as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        records = [json.loads(line) for line in errors.splitlines()]
        assert [r["message"] for r in records] == ["ready", "stopping (SIGTERM)", "stopped"]
        assert all({"at", "level", "part"} <= set(r) for r in records)


def refused(house: House, *words: str, code: int) -> str:
    process = house.spawn(*words)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert out == ""
    assert errors.count("\n") == 1
    assert errors.startswith("posthouse: ")
    return errors


def test_a_second_server_is_refused_by_naming_the_first(house: House) -> None:
    with house.up() as (process, _):
        error = refused(house, "up", "--no-metrics", code=3)
        assert f"is held by process {process.pid}" in error
        assert house.json("mailbox", "ls") == {"mailboxes": [], "next": None}


def test_a_taken_port_is_one_clear_line_and_leaves_nothing_behind(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(house, "up", "--metrics-port", str(port), code=2)
    assert f"127.0.0.1 port {port}: it is taken" in error
    assert not house.socket.exists()
    with house.up():
        pass


def test_a_wrong_configuration_is_one_clear_line(house: House) -> None:
    (house.folder / "posthouse.toml").write_text("[metrics]\nprot = 5\n")
    error = refused(house, "up", code=2)
    assert "posthouse.toml:2: unknown key 'metrics.prot'; did you mean metrics.port?" in error


def test_a_control_path_that_is_no_socket_is_left_alone(house: House) -> None:
    (house.folder / "precious").write_text("data")
    error = refused(house, "up", "--no-metrics", "--set", "control.path=precious", code=2)
    assert "no socket" in error
    assert (house.folder / "precious").read_text() == "data"


def test_the_socket_of_a_killed_server_is_found_and_removed(house: House) -> None:
    with house.up() as (process, _):
        house.run("message", "post", "alice", "--desk", "inbound", "--id", "m1")
        process.kill()
        process.wait()
        assert house.socket.exists()
        checks = {each["check"]: each for each in house.json("doctor")["checks"]}
        assert checks["socket"]["status"] == "warn"
        assert "dead server" in checks["socket"]["detail"]
        assert not house.socket.exists()
    assert house.json("message", "show", "m1")["state"] == "ready"


def test_a_server_starts_over_the_socket_of_a_killed_one(house: House) -> None:
    with house.up() as (process, _):
        process.kill()
        process.wait()
    assert house.socket.exists()
    with house.up():
        assert house.json("mailbox", "ls")["mailboxes"] == []


def test_a_socket_path_longer_than_the_system_takes_works(house: House) -> None:
    deep = house.folder / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    long = House(deep)
    with long.up() as (_, summary):
        assert len(summary["control"]) > 108
        process = long.spawn("mailbox", "ls", "--json")
        out, _ = process.communicate(timeout=60)
        assert json.loads(out) == {"mailboxes": [], "next": None}


def test_a_socket_that_serves_another_store_is_refused(house: House) -> None:
    with house.up():
        words = ["mailbox", "ls", "--store", "other.db", "--set", f"control.path={house.socket}"]
        error = house.json(*words, code=2)["error"]
    assert "serves another store" in error["message"]


def test_the_journal_is_followed_through_a_server(house: House) -> None:
    with house.up():
        process = house.spawn("journal", "tail", "--follow", "--json", "--after", "0")
        assert process.stdout is not None
        try:
            house.run("message", "post", "alice", "--desk", "inbound", "--id", "m1")
            for line in process.stdout:
                if json.loads(line)["message_id"] == "m1":
                    break
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert json.loads(errors)["error"]["code"] == "interrupted"


def test_a_restore_is_refused_while_a_server_has_the_store(house: House) -> None:
    with house.up():
        house.run("message", "post", "alice", "--desk", "inbound", "--id", "m1")
        house.run("snapshot", "create", "copy.db")
        refusal = house.json("snapshot", "restore", "copy.db", "--node", "second", "--force", code=3)
        assert refusal["error"]["code"] == "store_held"
        assert house.json("message", "show", "m1")["state"] == "ready"


def test_a_server_exports_what_waited_long_enough(house: House) -> None:
    house.post("m1")
    with house.up("--set", "journal.export_s=50ms", "--set", "journal.wait_s=0") as (process, _):
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["message"].startswith("exported"):
                break
    assert house.json("journal", "verify")["segments"] >= 1


@pytest.mark.parametrize("variable", ["POSTHOUSE_STORE_PATH", "POSTHOUSE_STOER_PATH"])
def test_variables_reach_a_server_and_wrong_ones_are_refused(house: House, variable: str) -> None:
    process = house.spawn("config", "explain", "--json", env={variable: "elsewhere.db"})
    out, errors = process.communicate(timeout=60)
    if variable == "POSTHOUSE_STORE_PATH":
        rows = {row["name"]: row for row in json.loads(out)["settings"]}
        assert rows["store.path"]["value"] == str(house.folder / "elsewhere.db")
    else:
        assert "did you mean POSTHOUSE_STORE_PATH?" in json.loads(errors)["error"]["message"]
        assert process.returncode == 2


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """A server inside this process changes its umask and its log."""
    umask = os.umask(0o022)
    os.umask(umask)
    log = logging.getLogger("posthouse")
    before = (list(log.handlers), log.level, log.propagate)
    yield
    os.umask(umask)
    log.handlers, log.level, log.propagate = before


@pytest.mark.usefixtures("undisturbed")
def test_a_store_that_fails_ends_the_server_with_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = SqliteStore.apply

    def fail_after_start(store: SqliteStore, commands: Sequence[Command]) -> list[Outcome]:
        if any(isinstance(command, Start) for command in commands):
            return apply(store, commands)
        raise StoreFailed("a sync failed")

    # The first to try is the sweeper, right after the start.
    monkeypatch.setattr(SqliteStore, "apply", fail_after_start)
    result = house.run("up", "--no-metrics", "--console-port", "0", code=3)
    assert "posthouse: the engine stopped: a sync failed" in result.stderr
    assert not house.socket.exists()


def test_help_loads_nothing_heavy(house: House) -> None:
    program = (
        "import sys\nfrom posthouse.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('|', *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.partition("|")[2].split())
    heavy = {"apsw", "asyncio", "orjson", "prometheus_client", "pyarrow", "rich", "tomllib", "uvloop"}
    assert "click" in loaded
    assert not loaded & heavy


def test_a_reader_that_leaves_early_is_no_error(house: House) -> None:
    house.post(*(f"m{i}" for i in range(300)))
    process = house.spawn("journal", "tail", "-n", "1000")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("part", up.PARTS)
def test_a_part_that_runs_alone_starts_no_other_whatever_is_configured(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = "".join(f"[{name}]\nenabled = true\n" for name in up.PARTS)
    (tmp_path / "posthouse.toml").write_text(every, encoding="utf-8")
    session = Session()
    up.alone(session, part, f"posthouse {part}")
    config = session.config()
    assert [name for name in up.PARTS if config.switch(f"{name}.enabled")] == [part]
