"""Operations by themselves, and the socket that carries them."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from posthouse.config import Config, load
from posthouse.control import server
from posthouse.control import socket as wire
from posthouse.control.catalogue import OPERATIONS, run
from posthouse.control.client import Client
from posthouse.control.journal import Exporter
from posthouse.control.operation import Answer, Context, Operation, Refused, Stopped
from posthouse.control.server import ControlServer
from posthouse.errors import ConfigError, InvalidInput, StoreUnavailable
from posthouse.mailbox.command import Command, Lease, Pause, Post, Settle, Verdict
from posthouse.mailbox.message import SECOND, Message, Ref
from posthouse.mailbox.outcome import Outcome
from posthouse.mailbox.policy import PRESETS, Policy, ladder
from posthouse.mailbox.store import Store
from posthouse.stores.memory import MemoryStore

T = TypeVar("T")
START = 1_750_000_000 * SECOND
POLICIES = {
    **PRESETS,
    "plain": Policy("plain", retry=ladder(60), attempts_max=3),
    "block": PRESETS["inbound"].replace(name="block", poison=PRESETS["inbound"].poison.__class__("block")),
    "wide": Policy("wide", window_per_lane=2),
    "quiet": Policy("quiet", quiet_s=10.0, quiet_max_s=60.0),
}


class Desk:
    """A reference store whose clock stands still until it is moved."""

    def __init__(self) -> None:
        self.before_trim: list[Any] = []
        self.memory = MemoryStore(POLICIES)
        self.at = START

    @property
    def store(self) -> Store:
        return self.memory

    def call(self, *commands: Command) -> list[Outcome]:
        return self.memory.apply([command._replace(at=self.at) for command in commands])

    def maintain(self, job: Callable[[Store], T]) -> T:
        return job(self.memory)

    def now(self) -> int:
        return self.at

    def post(self, desk: str, *ids: str, **fields: Any) -> None:
        self.call(*(Post(Message(desk, "alice", id, **fields)) for id in ids))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load({}, tmp_path)


@pytest.fixture
def ask(desk: Desk, config: Config) -> Callable[..., Any]:
    context = Context(desk, config, "operator:test", lambda done, total, doing: None)
    return lambda name, **parameters: run(context, name, parameters)


Ask = Callable[..., Any]


# ---- why a lane is not moving


def why(ask: Ask, desk: str) -> dict[str, Any]:
    answer = ask("lane.why", mailbox="alice", lane="", desk=desk)
    assert isinstance(answer, dict), answer
    assert answer["sentence"].endswith(".") or answer["code"] in ("ready", "retry")
    return answer


def test_why_ready(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1")
    assert (why(ask, "plain")["code"], why(ask, "plain")["message_id"]) == ("ready", "m1")


def test_why_empty(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1")
    desk.call(Lease("plain", "alice", "t"), Settle(Ref("plain", "alice", "", "m1"), "t", Verdict.DELIVERED))
    assert (why(ask, "plain")["code"], why(ask, "plain")["head"]) == ("empty", None)


def test_why_in_flight_names_the_holder_and_the_times(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1", "m2")
    desk.call(Lease("plain", "alice", "t", holder="worker-7"))
    found = why(ask, "plain")
    assert (found["code"], found["holder"], found["message_id"]) == ("in_flight", "worker-7", "m1")
    assert found["since"] == "2025-06-15T15:06:40.000000Z"
    assert found["until"] == "2025-06-15T15:07:40.000000Z"
    assert "t" not in found.values(), "the token is the holder's alone"


def test_why_lease_ended(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1")
    desk.call(Lease("plain", "alice", "t", holder="w"))
    desk.at += 61 * SECOND
    assert why(ask, "plain")["code"] == "lease_ended"


def test_why_received(desk: Desk, ask: Ask) -> None:
    desk.post("relay", "m1")
    desk.call(Lease("relay", "alice", "t", holder="c1"), Settle(Ref("relay", "alice", "", "m1"), "t", Verdict.RECEIVED))
    found = why(ask, "relay")
    assert (found["code"], found["holder"]) == ("received", "c1")


def test_why_window_full(desk: Desk, ask: Ask) -> None:
    desk.post("wide", "m1", "m2", "m3")
    desk.call(Lease("wide", "alice", "t", holder="w", limit=2))
    found = why(ask, "wide")
    assert (found["code"], found["in_flight"]) == ("window_full", 2)


def test_why_retry_tells_when_and_the_last_error(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1")
    ref = Ref("plain", "alice", "", "m1")
    desk.call(Lease("plain", "alice", "t"), Settle(ref, "t", Verdict.RETRY, error="no route"))
    found = why(ask, "plain")
    assert (found["code"], found["error"], found["head"]["attempts"]) == ("retry", "no route", 1)
    assert found["until"] == "2025-06-15T15:07:40.000000Z"


def test_why_scheduled(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1", due_at=START + 5 * SECOND)
    assert (why(ask, "plain")["code"], why(ask, "plain")["until"]) == ("scheduled", "2025-06-15T15:06:45.000000Z")


def test_why_quiet_and_no_longer(desk: Desk, ask: Ask) -> None:
    desk.post("quiet", "m1")
    desk.at += 5 * SECOND
    desk.post("quiet", "m2")
    assert (why(ask, "quiet")["code"], why(ask, "quiet")["until"]) == ("quiet", "2025-06-15T15:06:55.000000Z")
    desk.at += 10 * SECOND
    assert why(ask, "quiet")["code"] == "ready"


def test_why_expired(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1", expires_at=START + SECOND)
    desk.at += 2 * SECOND
    assert why(ask, "plain")["code"] == "expired"


def test_why_paused_tells_by_whom_and_since_when(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1")
    desk.call(Pause("plain", "alice", "", holder="operator:eve"))
    found = why(ask, "plain")
    assert (found["code"], found["holder"], found["since"]) == ("paused", "operator:eve", "2025-06-15T15:06:40.000000Z")
    desk.call(Pause("plain", "alice", holder="operator:bob"))
    assert (why(ask, "plain")["code"], why(ask, "plain")["holder"]) == ("mailbox_paused", "operator:bob")


def test_why_poisoned_names_the_message_that_died_last(desk: Desk, ask: Ask) -> None:
    desk.post("block", "m1", "m2", "m3")
    for id in ("m1", "m2"):
        ref = Ref("block", "alice", "", id)
        desk.call(Lease("block", "alice", id), Settle(ref, id, Verdict.DEAD, error=f"bad {id}"))
        desk.at += SECOND
        if id == "m1":
            assert ask("lane.unblock", mailbox="alice")["was"] == "poison"
    found = why(ask, "block")
    assert (found["code"], found["message_id"], found["error"]) == ("poisoned", "m2", "bad m2")
    assert found["head"]["id"] == "m3"


def test_why_unknown_desk(desk: Desk, ask: Ask) -> None:
    desk.post("plain", "m1")
    desk.memory.policies = dict(PRESETS)
    assert why(ask, "plain")["code"] == "unknown_desk"
    assert ask("lane.unblock", mailbox="alice", desk="plain").code == "unknown_desk"
    assert ask("message.cancel", id="m1").code == "unknown_desk"
    assert ask("mailbox.resume", mailbox="alice").code == "unknown_desk"


def test_why_corrupt(desk: Desk, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.post("plain", "m1")
    monkeypatch.setattr(desk.memory, "bodies", lambda refs: [None for _ in refs])
    assert (why(ask, "plain")["code"], why(ask, "plain")["message_id"]) == ("corrupt", "m1")
    assert ask("message.show", id="m1")["damaged"] is True


def test_every_code_is_listed_where_people_look_it_up() -> None:
    from posthouse.control import lane

    assert lane.__doc__ is not None
    source = Path(lane.__file__).read_text(encoding="utf-8")
    for code in ("ready", "corrupt", "window_full", "mailbox_paused", "unknown_desk", "lease_ended"):
        assert code in lane.__doc__
        assert f'"{code}"' in source


# ---- parameters


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("mailbox.lss", {}, "did you mean mailbox.ls?"),
        ("mailbox.ls", {"limti": 5}, "did you mean limit?"),
        ("mailbox.ls", {"limit": "5"}, "limit must be int, not str"),
        ("mailbox.ls", {"limit": True}, "limit must be int, not bool"),
        ("mailbox.ls", {"limit": 0}, "limit must be between 1"),
        ("mailbox.ls", {"after": ["x"]}, "a desk and a mailbox"),
        ("mailbox.ls", {"after": [1, 2]}, "list of texts"),
        ("mailbox.show", {}, "mailbox must be given"),
        ("mailbox.show", {"mailbox": "a\nb"}, "control character"),
        ("mailbox.show", {"mailbox": "a" * 10_000}, "10000 characters long"),
        ("dead.ls", {"where": {"colour": "red"}}, "unknown filter 'colour'"),
        ("dead.ls", {"where": {"since": "monday"}}, "since must be whole microseconds"),
        ("dead.ls", {"where": {"since": -1}}, "since is out of range"),
        ("dead.ls", {"where": {"states": ["sleepy"]}}, "states must be a list"),
        ("dead.ls", {"where": {"error": 5}}, "error must be text"),
        ("dead.redrive", {"where": {"states": ["delivered"]}}, "can be redriven"),
        ("dead.purge", {"where": {"states": ["ready"]}}, "can be purged here"),
        ("dead.redrive", {"rate_per_s": 0}, "rate_per_s must be more than 0"),
        ("message.post", {"desk": "plain", "mailbox": "a", "id": "x", "body": "!"}, "not base64"),
        ("message.show", {"id": "x", "body_bytes_max": 5.5}, "body_bytes_max must be int"),
        ("message.resolve", {"id": "x", "verdict": "maybe"}, "verdict must be one of"),
        ("snapshot.create", {"path": "relative"}, "path must be absolute"),
        ("journal.events", {"after": 1, "last": 1}, "either after or last"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_done(
    ask: Ask, name: str, parameters: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidInput, match=expected.replace("?", r"\?")):
        ask(name, **parameters)


def test_a_store_without_a_capability_says_so(ask: Ask) -> None:
    assert ask("snapshot.create", path="/tmp/x").code == "unsupported"
    assert ask("doctor")["ok"] is True


def test_redrive_keeps_order_and_says_what_had_no_room(desk: Desk, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.control.dead.REDRIVE_STEP", 2)
    ids = [f"m{i}" for i in range(5)]
    desk.post("plain", *ids)
    for id in ids:
        desk.call(Lease("plain", "alice", id), Settle(Ref("plain", "alice", "", id), id, Verdict.DEAD))
    assert ask("dead.redrive", limit=3)["ids"] == ids[:3]
    desk.memory.policies = {**POLICIES, "plain": POLICIES["plain"].replace(capacity=4)}
    rest = ask("dead.redrive")
    assert (rest["redriven"], rest["skipped"]) == (1, 1)


def test_an_exporter_writes_small_segments_only_after_a_wait(desk: Desk, tmp_path: Path) -> None:
    now = 0.0
    exporter = Exporter(desk, tmp_path / "journal", 100.0, lambda: now)
    desk.post("plain", "m1")
    assert exporter.run().paths == ()
    now = 99.0
    assert exporter.run().paths == ()
    now = 100.0
    assert len(exporter.run().paths) == 1
    assert exporter.run().paths == ()
    desk.post("plain", "m2")
    now = 300.0
    assert exporter.run().paths == (), "the wait of new events begins when they are first seen"


# ---- the socket


@pytest.fixture
def serving(desk: Desk, config: Config) -> Iterator[ControlServer]:
    config.path("control.path").parent.mkdir(parents=True, exist_ok=True)
    control = ControlServer(desk, config, "1.2.3")
    control.start()
    yield control
    control.close()


def client_of(control: ControlServer) -> Client:
    client = Client.connect(control.path)
    assert client is not None
    return client


def quietly(done: int, total: int | None, doing: str) -> None:
    pass


def raw(control: ControlServer) -> tuple[socket.socket, Any]:
    sock = wire.dial(control.path)
    assert sock is not None
    sock.settimeout(30)
    reader = sock.makefile("rb")
    assert json.loads(reader.readline())["posthouse"] == 1
    return sock, reader


@pytest.fixture
def temporary() -> Iterator[Callable[[str, Callable[..., Answer]], None]]:
    """Register operations for one test."""
    added: list[str] = []

    def add(name: str, function: Callable[..., Answer]) -> None:
        OPERATIONS[name] = Operation(name, function, {})
        added.append(name)

    yield add
    for name in added:
        del OPERATIONS[name]


def test_an_operation_answers_the_same_through_the_socket(desk: Desk, ask: Ask, serving: ControlServer) -> None:
    desk.post("plain", "m1")
    client = client_of(serving)
    for name, parameters in (
        ("mailbox.ls", {}),
        ("message.show", {"id": "m1"}),
        ("message.show", {"id": "nothing"}),
        ("lane.why", {"mailbox": "alice"}),
    ):
        assert client.call(name, parameters, quietly) == ask(name, **parameters)
    with pytest.raises(InvalidInput, match="did you mean limit"):
        client.call("mailbox.ls", {"limti": 5}, quietly)
    client.close()


def test_the_socket_is_for_its_owner_alone_and_goes_with_the_server(serving: ControlServer) -> None:
    assert stat.S_IMODE(os.stat(serving.path).st_mode) == 0o600
    serving.close()
    assert not serving.path.exists()
    serving.close()


def test_the_holder_in_the_journal_is_who_the_system_says(desk: Desk, serving: ControlServer) -> None:
    client = client_of(serving)
    client.call("mailbox.pause", {"mailbox": "alice", "desk": "plain"}, quietly)
    client.close()
    (event,) = [event for _, _, event in desk.memory.events() if event.event == "paused"]
    assert event.holder == f"operator:{server.user_name(os.getuid())}"
    assert server.user_name(2**31 - 5) == f"uid{2**31 - 5}"


def test_progress_is_streamed_before_the_result(
    serving: ControlServer, temporary: Callable[[str, Callable[..., Answer]], None]
) -> None:
    def count(context: Context) -> Answer:
        for done in range(3):
            context.report(done, 3, "counting")
        return {"counted": 3}

    temporary("test.count", count)
    seen: list[tuple[int, int | None, str]] = []
    client = client_of(serving)
    assert client.call("test.count", {}, lambda *step: seen.append(step)) == {"counted": 3}
    assert seen == [(0, 3, "counting"), (1, 3, "counting"), (2, 3, "counting")]
    client.close()


def test_clients_do_not_wait_for_each_other(
    serving: ControlServer, temporary: Callable[[str, Callable[..., Answer]], None]
) -> None:
    both = threading.Barrier(3, timeout=30)

    def meet(context: Context) -> Answer:
        both.wait()
        return {"met": True}

    temporary("test.meet", meet)
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client_of(serving).call("test.meet", {}, quietly)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    both.wait()
    for thread in threads:
        thread.join()
    assert answers == [{"met": True}, {"met": True}]


def endless(begun: threading.Event, ended: list[BaseException], done: threading.Event) -> Callable[..., Answer]:
    def work(context: Context) -> Answer:
        try:
            while True:
                context.report(1, None, "working")
                begun.set()
        except Stopped as error:
            ended.append(error)
            raise
        finally:
            done.set()

    return work


def test_a_client_that_leaves_ends_its_operation(
    serving: ControlServer, temporary: Callable[[str, Callable[..., Answer]], None]
) -> None:
    begun, done, ended = threading.Event(), threading.Event(), list[BaseException]()
    temporary("test.endless", endless(begun, ended, done))
    sock, reader = raw(serving)
    sock.sendall(b'{"id": 1, "call": "test.endless"}\n')
    assert begun.wait(30)
    reader.close()
    sock.close()
    assert done.wait(30)
    assert len(ended) == 1


def test_a_server_that_stops_ends_long_operations(
    serving: ControlServer, temporary: Callable[[str, Callable[..., Answer]], None]
) -> None:
    begun, done, ended = threading.Event(), threading.Event(), list[BaseException]()
    temporary("test.endless", endless(begun, ended, done))
    caught: list[BaseException] = []

    def call() -> None:
        try:
            client_of(serving).call("test.endless", {}, quietly)
        except Stopped as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(30)
    serving.close()
    thread.join(30)
    assert len(ended) == len(caught) == 1


def test_a_mistake_in_an_operation_does_not_end_the_server(
    serving: ControlServer,
    temporary: Callable[[str, Callable[..., Answer]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(context: Context) -> Answer:
        raise ZeroDivisionError("oops")

    temporary("test.broken", broken)
    sock, reader = raw(serving)
    sock.sendall(b'{"id": 1, "call": "test.broken"}\n{"id": 2, "call": "mailbox.ls"}\n')
    assert json.loads(reader.readline())["error"]["code"] == "internal"
    assert json.loads(reader.readline())["result"]["mailboxes"] == []
    reader.close()
    sock.close()


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"\n", "not JSON"),
        (b"{\xff}\n", "not JSON"),
        (b"[1]\n", "no JSON object"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b'{"id": NaN}\n', "not JSON"),
        (b"x" * (wire.REQUEST_BYTES_MAX + 70_000), "bytes in one line"),
    ],
)
def test_what_is_no_request_is_told_so_and_cut_off(serving: ControlServer, request_: bytes, expected: str) -> None:
    sock, reader = raw(serving)
    try:
        sock.sendall(request_)
    except OSError:
        pass  # Cut off while still sending.
    try:
        answer = reader.readline()
        if answer:
            assert expected in json.loads(answer)["error"]["message"]
            assert reader.read() == b""
    except ConnectionResetError:
        pass  # Likewise: unread bytes turn the close into a reset.
    reader.close()
    sock.close()
    client_of(serving).close()


@pytest.mark.parametrize("request_", [b"{}\n", b'{"id": "x", "call": "mailbox.ls"}\n', b'{"id": 1, "call": 5}\n'])
def test_a_request_of_the_wrong_form_is_refused_and_the_next_is_answered(
    serving: ControlServer, request_: bytes
) -> None:
    sock, reader = raw(serving)
    sock.sendall(request_ + b'{"id": 2, "call": "mailbox.ls"}\n')
    assert json.loads(reader.readline())["error"]["code"] == "invalid"
    assert json.loads(reader.readline())["id"] == 2
    reader.close()
    sock.close()


def test_a_request_that_takes_too_long_is_cut_off(serving: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WITHIN_S", 0.05)
    sock, reader = raw(serving)
    sock.sendall(b'{"id": 1,')
    assert reader.read() == b""
    reader.close()
    sock.close()


def test_more_clients_than_it_serves_are_told_to_come_back(
    serving: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CLIENTS_MAX", 2)
    held = [client_of(serving), client_of(serving)]
    with pytest.raises(StoreUnavailable, match="2 clients are connected"):
        Client.connect(serving.path)
    for client in held:
        client.close()


def test_a_living_server_is_not_displaced_and_a_dead_ones_socket_is(
    desk: Desk, config: Config, serving: ControlServer
) -> None:
    second = ControlServer(desk, config)
    with pytest.raises(ConfigError, match="another server answers"):
        second.start()
    assert client_of(serving).store == os.path.realpath(config.path("store.path"))
    serving.close()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(config.path("control.path")))
    dead.close()
    assert Client.connect(config.path("control.path")) is None
    second.start()
    client_of(second).close()
    second.close()


def test_a_server_that_speaks_another_protocol_is_not_spoken_to(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with wire.listen(path) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            sock.sendall(b'{"posthouse": 99}\n')
            sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StoreUnavailable, match="another protocol"):
            Client.connect(path)
        thread.join()


def test_a_path_too_long_for_the_system_is_reached_through_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with wire.listen(folder / "s.sock"):
        sock = wire.dial(folder / "s.sock")
        assert sock is not None
        sock.close()
    with pytest.raises(ConfigError, match="too long"):
        wire.listen(folder / ("y" * 100))


def test_a_refusal_is_a_value_with_a_code(ask: Ask) -> None:
    answer = ask("mailbox.show", mailbox="nobody")
    assert isinstance(answer, Refused)
    assert answer.code == "not_found"
