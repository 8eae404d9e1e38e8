"""Every command by itself: what it prints, what it changes, how it exits."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.unit.cli.house import House

from posthouse.cli.session import Session
from posthouse.control import operator
from posthouse.control.operator import open_store
from posthouse.mailbox.command import Lease, Settle, Verdict
from posthouse.mailbox.message import Ref


def test_mailboxes_are_listed_page_by_page(house: House) -> None:
    for name in ("a", "b", "c"):
        house.post("m1", mailbox=name)
    first = house.json("mailbox", "ls", "--limit", "2")
    assert [row["mailbox"] for row in first["mailboxes"]] == ["a", "b"]
    assert first["next"] == ["inbound", "b"]
    second = house.json("mailbox", "ls", "--limit", "2", "--after", *first["next"])
    assert [row["mailbox"] for row in second["mailboxes"]] == ["c"]
    assert second["next"] is None
    assert first["mailboxes"][0]["counts"] == {"ready": 1}
    assert "--after inbound b" in house.run("mailbox", "ls", "--limit", "2").stdout


def test_a_list_of_nothing_says_so(house: House) -> None:
    house.apply()
    assert house.run("mailbox", "ls").stdout == "There are no mailboxes.\n"
    assert house.run("dead", "ls").stdout == "There are no dead letters.\n"
    assert house.json("mailbox", "ls") == {"mailboxes": [], "next": None}


def test_a_mailbox_is_shown_with_its_lanes(house: House) -> None:
    house.post("m1", "m2", lane="x")
    house.post("m3")
    found = house.json("mailbox", "show", "alice")
    assert found["depth"] == 3
    assert found["capacity"] == 100_000
    assert [(lane["lane"], lane["depth"]) for lane in found["lane_list"]] == [("", 1), ("x", 2)]
    text = house.run("mailbox", "show", "alice").stdout
    assert "3 of 100000" in text
    assert "(unnamed)" in text


def test_a_mailbox_of_two_desks_must_be_told_apart(house: House) -> None:
    house.post("m1")
    house.post("m1", desk="outbox")
    refused = house.json("mailbox", "show", "alice", code=1)
    assert refused["error"]["code"] == "ambiguous"
    assert refused["error"]["desks"] == ["inbound", "outbox"]
    assert house.json("mailbox", "show", "alice", "--desk", "outbox")["desk"] == "outbox"


def test_pause_and_resume_say_whether_they_changed_anything(house: House) -> None:
    house.post("m1")
    assert house.json("mailbox", "pause", "alice")["changed"] is True
    assert house.json("mailbox", "pause", "alice")["changed"] is False
    assert house.json("mailbox", "ls")["mailboxes"][0]["paused"] == "operator"
    why = house.json("lane", "why", "alice")
    assert why["code"] == "mailbox_paused"
    assert why["holder"].startswith("operator:")
    assert house.run("mailbox", "resume", "alice").stdout == "Mailbox alice is not paused.\n"
    assert house.json("lane", "why", "alice")["code"] == "ready"


def test_a_mailbox_can_be_paused_before_it_exists_and_a_lane_by_itself(house: House) -> None:
    house.apply()
    assert house.json("mailbox", "pause", "bob", code=1)["error"]["code"] == "not_found"
    assert house.json("mailbox", "pause", "bob", "--desk", "inbound")["paused"] is True
    assert house.json("mailbox", "pause", "bob", "--desk", "nope", code=1)["error"]["code"] == "unknown_desk"
    house.post("m1", lane="x")
    assert house.json("mailbox", "pause", "alice", "--lane", "x")["lane"] == "x"
    assert house.json("lane", "why", "alice")["code"] == "paused"
    assert house.json("lane", "unblock", "alice", "x")["changed"] is True


def test_purge_needs_yes_where_nobody_can_be_asked_and_can_be_tried_first(house: House) -> None:
    house.post("m1", "m2", "m3", kind="order")
    refused = house.json("mailbox", "purge", "alice", code=2)
    assert refused["error"]["code"] == "not_confirmed"
    assert house.json("mailbox", "purge", "alice", "--dry-run")["cancelled"] == 3
    assert house.json("mailbox", "purge", "alice", "--yes", "--kind", "other")["cancelled"] == 0
    assert house.json("mailbox", "purge", "alice", "--yes", "--id", "m2")["cancelled"] == 1
    assert house.json("mailbox", "purge", "alice", "--yes", "--limit", "1")["cancelled"] == 1
    assert house.run("mailbox", "purge", "alice", "--yes").stdout == "Done: 1 cancelled, 2 removed.\n"
    assert house.json("mailbox", "show", "alice")["counts"].get("ready") is None


def test_purge_goes_on_past_its_own_step(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.control.mailbox.PURGE_STEP", 2)
    house.post(*(f"m{i}" for i in range(5)))
    assert house.json("mailbox", "purge", "alice", "--yes")["cancelled"] == 5


def test_a_lane_blocked_by_poison_names_the_message_and_goes_on_after_unblock(house: House) -> None:
    (house.folder / "posthouse.toml").write_text('[desk.inbound]\npoison = "block"\n')
    house.post("bad", "good", lane="x")
    house.kill("bad", error="cannot parse 17")
    why = house.json("lane", "why", "alice", "x")
    assert why["code"] == "poisoned"
    assert why["message_id"] == "bad"
    assert why["error"] == "cannot parse 17"
    assert why["head"]["id"] == "good"
    assert "cannot parse 17" in house.run("lane", "why", "alice").stdout
    assert house.json("lane", "unblock", "alice") == {
        "desk": "inbound",
        "mailbox": "alice",
        "lane": "x",
        "was": "poison",
        "changed": True,
    }
    assert house.json("lane", "why", "alice")["code"] == "ready"
    assert house.run("lane", "unblock", "alice").stdout == "Lane x of mailbox alice was not paused.\n"


def test_a_message_is_posted_once_and_shown_whole(house: House) -> None:
    house.apply()
    words = ["message", "post", "alice", "--desk", "inbound", "--id", "m1", "--lane", "x", "--kind", "order"]
    words += ["--sender", "bob", "--header", "a=1=2", "--body", "grüße", "--expires", "1h", "--cause", "c0"]
    posted = house.json(*words)
    assert (posted["outcome"], posted["seq"]) == ("posted", 1)
    again = house.json(*words)
    assert (again["outcome"], again["state"]) == ("duplicate", "ready")
    shown = house.json("message", "show", "m1")
    assert shown["body"] == {"encoding": "utf-8", "data": "grüße", "truncated": False}
    assert shown["headers"] == {"a": "1=2"}
    assert (shown["sender"], shown["lane"], shown["kind"], shown["cause"]) == ("bob", "x", "order", "c0")
    assert shown["expires_at"] == posted["expires_at"]
    assert "token" not in shown
    text = house.run("message", "show", "m1").stdout
    assert "grüße" in text
    assert "Header a" in text


def test_a_body_may_come_from_a_file_or_from_standard_input(house: House) -> None:
    house.apply()
    (house.folder / "body").write_bytes(b"\xff\x00\x1b[2J")
    house.run("message", "post", "alice", "--desk", "inbound", "--id", "m1", "--body-file", "body")
    house.run("message", "post", "alice", "--desk", "inbound", "--id", "m2", "--body-file", "-", input=b"in")
    assert house.json("message", "show", "m1")["body"]["encoding"] == "base64"
    assert house.json("message", "show", "m2")["body"]["data"] == "in"
    cut = house.json("message", "show", "m2", "--body-bytes", "1")["body"]
    assert cut == {"encoding": "utf-8", "data": "i", "truncated": True}
    missing = house.json("message", "post", "a", "--desk", "inbound", "--body-file", "nowhere", code=1)
    assert missing["error"]["code"] == "system"


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["--desk", "nope"], 1, "unknown_desk"),
        (["--desk", "inbound", "--id", "a\x1bb"], 2, "invalid"),
        (["--desk", "inbound", "--header", "x"], 2, "usage"),
        (["--desk", "inbound", "--body", "x", "--body-file", "y"], 2, "usage"),
        (["--desk", "inbound", "--expires", "2001-01-01"], 1, "ttl"),
        (["--desk", "inbound", "--expires", "soon"], 2, "usage"),
        (["--desk", "tiny", "--body", "long"], 1, "oversize"),
    ],
)
def test_a_post_that_cannot_be_is_refused_with_a_stable_code(
    house: House, words: list[str], exit_code: int, code: str
) -> None:
    (house.folder / "posthouse.toml").write_text('[desk.tiny]\npreset = "inbound"\nsize_bytes_max = 3\n')
    house.apply()
    assert house.json("message", "post", "alice", *words, code=exit_code)["error"]["code"] == code


def test_an_id_of_two_mailboxes_must_be_told_apart(house: House) -> None:
    house.post("m1")
    house.post("m1", mailbox="bob")
    refused = house.json("message", "show", "m1", code=1)["error"]
    assert refused["code"] == "ambiguous"
    assert [c["mailbox"] for c in refused["candidates"]] == ["alice", "bob"]
    assert house.json("message", "show", "m1", "--mailbox", "bob")["mailbox"] == "bob"
    assert house.json("message", "show", "m2", code=1)["error"]["code"] == "not_found"


def test_a_message_is_cancelled_parked_and_unparked(house: House) -> None:
    house.post("m1", "m2")
    assert house.json("message", "cancel", "m1", code=2)["error"]["code"] == "not_confirmed"
    assert house.json("message", "cancel", "m1", "--yes")["state"] == "cancelled"
    assert house.json("message", "cancel", "m1", "--yes", code=1)["error"]["code"] == "finished"
    assert house.json("message", "park", "m2")["state"] == "parked"
    assert house.json("message", "park", "m2", code=1)["error"]["code"] == "not_allowed"
    assert house.json("message", "unpark", "m2")["state"] == "ready"
    assert house.json("message", "unpark", "m2", code=1)["error"]["code"] == "not_allowed"


def test_what_was_in_flight_when_its_process_ended_is_uncertain_where_the_policy_says_so(house: House) -> None:
    house.post("m1", desk="outbound")
    house.apply(Lease("outbound", "alice", "t", holder="w"))
    # Parking is a command, so the store is taken into use first, and that ends the dead process's lease.
    assert house.json("message", "park", "m1")["state"] == "parked"
    events = [row["event"] for row in house.json("message", "history", "m1")["events"]]
    assert events == ["posted", "leased", "uncertain", "parked"]


def test_an_uncertain_message_is_resolved_by_hand(house: House) -> None:
    house.post("m1", "m2", desk="outbound")
    ref = Ref("outbound", "alice", "", "m1")
    house.apply(Lease("outbound", "alice", "t", holder="w"), Settle(ref, "t", Verdict.UNCERTAIN, error="cut off"))
    assert house.json("message", "resolve", "m2", "delivered", "--yes", code=1)["error"]["code"] == "not_allowed"
    assert house.json("message", "resolve", "m1", "delivered", "--yes")["state"] == "delivered"


def test_a_history_tells_both_lives_of_a_message_also_after_export(house: House) -> None:
    house.post("m1")
    house.kill("m1", error="boom")
    assert house.json("dead", "redrive", "--id", "m1")["redriven"] == 1
    before = house.json("message", "history", "m1")
    assert [row["event"] for row in before["events"]] == ["posted", "leased", "died", "redriven"]
    house.json("journal", "export")
    after = house.json("message", "history", "m1")
    assert after == before
    assert "redriven" in house.run("message", "history", "m1").stdout


def test_a_history_of_nothing_is_not_found(house: House) -> None:
    house.post("m1")
    assert house.json("message", "history", "m2", code=1)["error"]["code"] == "not_found"


def test_dead_letters_are_grouped_by_what_they_died_of(house: House) -> None:
    house.post("m1", "m2", "m3", "m4")
    house.kill("m1", "m2", error="timeout after 17 s on 0xdeadbeef")
    house.kill("m3", error="timeout after 99 s on 0xcafe0001")
    house.kill("m4", error="no such user")
    found = house.json("dead", "ls")
    assert [(g["count"], g["error"]) for g in found["groups"]] == [
        (3, "timeout after # s on #"),
        (1, "no such user"),
    ]
    first = found["groups"][0]
    assert first["first_at"] < first["last_at"]
    assert (first["reason"], first["mailboxes"], first["example"]) == ("permanent", 1, "m1")
    assert found["messages"] == 4
    by_error = house.json("dead", "ls", "--each", "--error", "timeout after 5 s on 0xdead")
    assert [m["id"] for m in by_error["messages"]] == ["m1", "m2", "m3"]
    page = house.json("dead", "ls", "--each", "--limit", "3")
    rest = house.json("dead", "ls", "--each", "--limit", "3", "--after", str(page["next"]))
    assert [m["id"] for m in rest["messages"]] == ["m4"]
    text = house.run("dead", "ls").stdout
    assert "timeout after # s on #" in text
    shown = house.json("dead", "show", "m1")
    assert shown["error_group"] == "timeout after # s on #"
    assert [row["event"] for row in shown["history"]] == ["posted", "leased", "died"]


def test_redrive_takes_filters_limits_and_can_be_tried_first(house: House) -> None:
    house.post("m1", "m2", "m3")
    house.kill("m1", "m2", "m3")
    assert house.json("dead", "redrive", code=2)["error"]["code"] == "not_confirmed"
    tried = house.json("dead", "redrive", "--dry-run")
    assert (tried["redriven"], tried["ids"], tried["dry_run"]) == (3, ["m1", "m2", "m3"], True)
    assert house.json("dead", "redrive", "--mailbox", "bob")["redriven"] == 0
    assert house.json("dead", "redrive", "--mailbox", "alice", "--limit", "1")["ids"] == ["m1"]
    assert house.json("dead", "redrive", "--until", "1h")["redriven"] == 0
    done = house.run("dead", "redrive", "--yes", "--rate", "10")
    assert done.stdout == "Redrove 2 messages.\n"
    assert house.json("message", "show", "m3")["due_at"] > house.json("message", "show", "m2")["posted_at"]
    assert house.json("dead", "redrive", "--state", "delivered", code=2)["error"]["code"] == "usage"
    assert house.json("dead", "redrive", "--desk", "nope", code=1)["error"]["code"] == "unknown_desk"


def test_dead_letters_are_set_aside_and_returned(house: House) -> None:
    house.post("m1", "m2", "m3")
    house.kill("m1", "m2", "m3")
    assert house.json("dead", "park", code=2)["error"]["code"] == "not_confirmed"
    assert house.json("dead", "park", "--dry-run") == {"parked": 3, "skipped": 0, "dry_run": True, "more": False}
    assert house.run("dead", "park", "--id", "m1").stdout == "Done: parked 1 message.\n"
    assert house.json("dead", "park", "--yes", "--limit", "1")["parked"] == 1
    assert [row["id"] for row in house.json("dead", "ls", "--each")["messages"]] == ["m3"]
    assert house.json("message", "show", "m1")["state"] == "parked"
    assert house.json("dead", "park", "--state", "parked", code=2)["error"]["code"] == "usage"
    assert house.json("dead", "unpark", "--id", "m1")["unparked"] == 1
    assert house.run("dead", "unpark", "--yes").stdout == "Done: unparked 1 message.\n"
    assert house.json("message", "show", "m2")["state"] == "ready"


def test_dead_purge_removes_only_dead_letters(house: House) -> None:
    house.post("m1", "m2")
    house.kill("m1")
    assert house.json("dead", "purge", "--yes") == {
        "cancelled": 0,
        "removed": 1,
        "skipped": 0,
        "dry_run": False,
        "more": False,
    }
    assert house.json("message", "show", "m2")["state"] == "ready"
    assert house.json("dead", "show", "m2", code=1)["error"]["code"] == "not_dead"


def test_the_journal_is_exported_verified_and_tailed_across_segments(house: House) -> None:
    house.post("m1", "m2", "m3")
    before = house.json("journal", "tail")["events"]
    done = house.json("journal", "export")
    assert done["events"] == len(before)
    assert done["left"] == 0
    assert [Path(path).exists() for path in done["segments"]] == [True]
    house.json("message", "park", "m1")
    after = house.json("journal", "tail", "-n", "1000")["events"]
    assert after[: len(before)] == before
    assert after[-1]["event"] == "parked"
    assert [row["offset"] for row in after] == list(range(1, len(after) + 1))
    assert [row["offset"] for row in house.json("journal", "tail", "--after", "2")["events"]][:2] == [3, 4]
    verified = house.json("journal", "verify")
    assert verified["ok"] is True
    assert verified["findings"] == []
    assert "parked" in house.run("journal", "tail", "-n", "1").stdout


def test_verify_names_what_is_missing_and_exits_with_4(house: House) -> None:
    house.post("m1")
    (path,) = house.json("journal", "export")["segments"]
    Path(path).unlink()
    found = house.json("journal", "verify", code=4)
    assert found["ok"] is False
    assert found["findings"][0]["kind"] == "missing"
    assert path in found["findings"][0]["where"]
    assert "missing" in house.run("journal", "verify", code=4).stdout
    assert house.json("doctor", code=4)["ok"] is False


def test_following_the_journal_needs_a_server(house: House) -> None:
    house.post("m1")
    assert house.json("journal", "tail", "--follow", code=1)["error"]["code"] == "no_server"


def test_a_snapshot_restores_queue_and_memory_under_a_new_name(house: House) -> None:
    house.post("m1", "m2")
    house.kill("m1")
    made = house.json("snapshot", "create", "copy.db")
    assert made["path"] == str(house.folder / "copy.db")
    assert stat.S_IMODE(Path(made["path"]).stat().st_mode) == 0o600
    assert house.json("snapshot", "create", "copy.db", code=1)["error"]["code"] == "exists"
    assert house.json("snapshot", "create", "no/copy.db", code=1)["error"]["code"] == "not_found"
    house.post("later")
    refused = house.json("snapshot", "restore", "copy.db", "--node", "second", code=1)
    assert refused["error"]["code"] == "exists"
    same = ["snapshot", "restore", "copy.db", "--force", "--node", made["node"]]
    assert house.json(*same, code=2)["error"]["code"] == "invalid"
    assert house.json("message", "show", "later")["state"] == "ready", "a failed restore changes nothing"
    done = house.json("snapshot", "restore", "copy.db", "--node", "second", "--force")
    assert done["restored_from"] == {"node": made["node"], "offset": made["offset"]}
    assert Path(done["kept"]).exists()
    assert house.json("message", "show", "later", code=1)["error"]["code"] == "not_found"
    assert house.json("message", "show", "m2")["state"] == "ready"
    repeat = house.json("message", "post", "alice", "--desk", "inbound", "--id", "m1")
    assert (repeat["outcome"], repeat["state"]) == ("duplicate", "dead")
    started = house.json("journal", "tail", "-n", "1000")["events"][0]
    assert (started["event"], started["node"], started["offset"]) == ("started", "second", 1)
    assert json.loads(started["detail"])["restored_from"] == done["restored_from"]


def test_a_snapshot_restores_where_there_is_no_store(house: House) -> None:
    house.post("m1")
    house.run("snapshot", "create", "copy.db")
    done = house.json("--store", "new/mail.db", "snapshot", "restore", "copy.db", "--node", "second")
    assert done["kept"] is None
    assert house.json("mailbox", "ls", "--store", "new/mail.db")["mailboxes"][0]["depth"] == 1


def test_the_doctor_finds_a_healthy_store_healthy(house: House) -> None:
    house.post("m1")
    house.run("journal", "export")
    (house.config().path("store.path")).chmod(0o600)
    found = house.json("doctor")
    assert found["ok"] is True
    assert {each["status"] for each in found["checks"]} == {"ok"}, found
    names = {each["check"] for each in found["checks"]}
    assert {"library", "schema", "integrity", "journal", "disk", "clock", "permissions", "socket", "log"} <= names
    assert "integrity" not in {each["check"] for each in house.json("doctor", "--quick")["checks"]}


def test_the_doctor_examines_a_store_that_cannot_be_opened(house: House) -> None:
    house.post("m1")
    house.config().path("store.path").write_bytes(b"this was a database" * 1_000)
    found = house.json("doctor", code=4)
    assert found["checks"][0]["check"] == "open"
    assert found["checks"][0]["status"] == "fail"


def test_the_doctor_sees_what_others_may_do(house: House) -> None:
    house.post("m1")
    path = house.config().path("store.path")
    path.chmod(0o666)
    found = {each["check"]: each["status"] for each in house.json("doctor", code=4)["checks"]}
    assert found["permissions"] == "fail"


def test_config_explain_says_where_each_value_came_from(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    (house.folder / "posthouse.toml").write_text('[log]\nlevel = "debug"\n[desk.mine]\npreset = "outbox"\n')
    monkeypatch.setenv("POSTHOUSE_ENGINE_SWEEP_S", "1m")
    found = house.json("config", "explain", "--set", "metrics.port=7")
    rows = {row["name"]: (row["value"], row["source"], row["where"]) for row in found["settings"]}
    file = f"{house.folder}/posthouse.toml"
    assert rows["log.level"] == ("debug", "file", f"{file}:2")
    assert rows["engine.sweep_s"] == (60.0, "environment", "POSTHOUSE_ENGINE_SWEEP_S")
    assert rows["metrics.port"] == (7, "flag", "--set")
    assert rows["log.format"] == ("auto", "default", None)
    assert rows["desk.mine.preset"] == ("outbox", "file", f"{file}:4")
    assert found["file"] == file
    text = house.run("config", "explain").stdout
    assert "desk.mine.preset" in text
    assert "desk.relay.ttl_s" not in text
    assert "desk.relay.ttl_s" in house.run("config", "explain", "--all").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(house: House, shell: str) -> None:
    script = house.json("completion", shell)["script"]
    assert "posthouse" in script
    assert "_POSTHOUSE_COMPLETE" in script
    assert house.run("completion", shell).stdout.strip() == script.strip()


def test_the_version_is_printed(house: House) -> None:
    assert house.run("--version").stdout.startswith("posthouse ")
    assert set(house.json("--version")) == {"version"}


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["nonsense"], 2, "usage"),
        (["mailbox", "nonsense"], 2, "usage"),
        (["mailbox", "ls", "--limit", "0"], 2, "usage"),
        (["mailbox", "ls", "--limti", "5"], 2, "usage"),
        (["--set", "storepath", "mailbox", "ls"], 2, "config"),
        (["--set", "store.paht=x", "mailbox", "ls"], 2, "config"),
        (["--config", "nowhere.toml", "mailbox", "ls"], 2, "config"),
        (["mailbox", "ls"], 3, "store"),
        (["mailbox", "show", "x" * 10_000_000], 3, "store"),
    ],
)
def test_errors_are_one_line_with_a_stable_code(house: House, words: list[str], exit_code: int, code: str) -> None:
    assert house.json(*words, code=exit_code)["error"]["code"] == code
    result = house.run(*words, code=exit_code)
    assert result.stdout == ""
    assert result.stderr.startswith("posthouse: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["mailbox"]])
def test_a_group_without_a_command_shows_its_help(house: House, words: list[str]) -> None:
    assert "Commands:\n" in house.run(*words, code=2).stderr
    assert house.json(*words, code=2)["error"]["code"] == "usage"


def test_what_nobody_foresaw_is_one_line_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(session: Session) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Session, "config", fail)
    assert house.json("mailbox", "ls", code=70)["error"]["code"] == "internal"
    assert house.run("mailbox", "ls", code=70).stderr.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        house.run("mailbox", "ls", "--debug", code=70)


def test_a_name_of_ten_megabytes_is_refused_and_not_repeated(house: House) -> None:
    house.post("m1")
    error = house.json("mailbox", "show", "x" * 10_000_000, code=2)["error"]
    assert error["code"] == "invalid"
    assert len(error["message"]) < 500


def test_only_a_server_makes_a_store(house: House) -> None:
    house.run("message", "post", "alice", "--desk", "inbound", code=3)
    assert list(house.folder.iterdir()) == []


def test_reading_writes_nothing_to_the_journal(house: House) -> None:
    house.post("m1")
    before = house.json("journal", "tail")["offset"]
    for words in (["mailbox", "ls"], ["lane", "why", "alice"], ["message", "show", "m1"], ["doctor"], ["dead", "ls"]):
        house.run(*words)
    assert house.json("journal", "tail")["offset"] == before


def test_a_store_held_by_something_that_does_not_listen_is_refused_by_name(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.post("m1")
    monkeypatch.setattr(operator, "WAIT_S", 0.0)
    store = open_store(house.config())
    try:
        error = house.json("mailbox", "ls", code=3)["error"]
    finally:
        store.close()
    assert error["code"] == "store_held"
    assert "is held by process" in error["message"]
    assert "answers on no socket" in error["message"]
