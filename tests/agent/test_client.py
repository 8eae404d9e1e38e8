"""The agent over real sockets: with the project's relay, and with one that misbehaves."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.agent.relay import Relay as Unkind
from tests.relay.harness import HOST, Relay

from posthouse.agent import Agent, Identity, client
from posthouse.agent.client import relay_url
from posthouse.agent.happening import Connected, Disconnected, Ignored, Pending, QueueFull, RateLimited
from posthouse.errors import BadIdentity, InvalidInput, RelayRefused, StoreHeld
from posthouse.wire import envelope as wire
from posthouse.wire.address import address_of

DEADLINE_S = 30.0


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(100):
            await work

    asyncio.run(limited())


def url_of(relay: Relay) -> str:
    return f"ws://127.0.0.1:{relay.settings['relay.port']}"


async def address_of_new(folder: Path, url: str) -> str:
    """Make an agent, connect it once, and leave."""
    async with Agent(folder, url) as agent:
        return await agent.wait_connected(DEADLINE_S)


async def texts(agent: Agent, count: int) -> list[str]:
    """Look at so many messages."""
    found: list[str] = []
    async for item in agent.receive(DEADLINE_S):
        if item.kind == "message":
            found.append(item.text)
        await item.done()
        if len(found) == count:
            break
    return found


# With the project's relay.


def test_messages_reach_somebody_who_is_there_and_are_confirmed_as_live(relay: Relay, tmp_path: Path):
    async def story() -> None:
        async with Agent(tmp_path / "a", url_of(relay)) as a, Agent(tmp_path / "b", url_of(relay)) as b:
            mine, theirs = await a.wait_connected(DEADLINE_S), await b.wait_connected(DEADLINE_S)
            assert mine.endswith("@" + HOST)
            ids = [await a.send(theirs, f"message {n}") for n in range(30)]
            assert await texts(b, 30) == [f"message {n}" for n in range(30)]
            assert await a.wait_state(theirs, ids[-1], ["delivered"], DEADLINE_S) == "delivered"
            found = a.book.sent(theirs, ids[-1])
            assert found is not None
            assert found["was_stored"] is False
            assert [item["sequence"] for item in b.book.history(mine, 2)] == [29, 30]

    run(story())


def test_messages_for_somebody_who_is_away_wait_and_are_confirmed_as_stored(relay: Relay, tmp_path: Path):
    async def story() -> None:
        theirs = await address_of_new(tmp_path / "b", url_of(relay))
        async with Agent(tmp_path / "a", url_of(relay)) as a:
            ids = [await a.send(theirs, f"message {n}") for n in range(5)]
            assert await a.wait_state(theirs, ids[-1], ["with the relay"], DEADLINE_S) == "with the relay"
        told: list[Any] = []
        async with Agent(tmp_path / "b", url_of(relay), on_happening=told.append) as b:
            assert await texts(b, 5) == [f"message {n}" for n in range(5)]
            assert Pending(5) in told
        # The sender was away when it was confirmed: the confirmation waited for him.
        async with Agent(tmp_path / "a", url_of(relay)) as a:
            for id in ids:
                assert await a.wait_state(theirs, id, ["delivered"], DEADLINE_S) == "delivered"
            assert all(item["was_stored"] for item in a.book.history(theirs, 10))

    run(story())


def test_what_is_sent_while_the_relay_is_away_survives_a_restart_of_both(relay: Relay, tmp_path: Path):
    async def story() -> None:
        url = url_of(relay)
        theirs = await address_of_new(tmp_path / "b", url)
        await asyncio.to_thread(relay.stop)
        told: list[Any] = []
        async with Agent(tmp_path / "a", url, on_happening=told.append) as a:
            ids = [await a.send(theirs, f"message {n}") for n in range(3)]
            assert await a.wait_state(theirs, ids[0], ["delivered"], 0) == "queued"
        async with Agent(tmp_path / "a", url) as a:
            await asyncio.to_thread(relay.start)
            assert await a.wait_state(theirs, ids[2], ["with the relay"], DEADLINE_S) == "with the relay"
            async with Agent(tmp_path / "b", url) as b:
                assert await texts(b, 3) == [f"message {n}" for n in range(3)]
                assert await a.wait_state(theirs, ids[2], ["delivered"], DEADLINE_S) == "delivered"

    run(story())


def test_a_connection_that_is_lost_is_made_again(relay: Relay, tmp_path: Path):
    async def story() -> None:
        told: list[Any] = []
        async with Agent(tmp_path / "a", url_of(relay), on_happening=told.append) as a:
            theirs = await address_of_new(tmp_path / "b", url_of(relay))
            await a.wait_connected(DEADLINE_S)
            await asyncio.to_thread(relay.restart)
            id = await a.send(theirs, "after the restart")
            assert await a.wait_state(theirs, id, ["with the relay"], DEADLINE_S) == "with the relay"
        kinds = [type(h) for h in told if isinstance(h, Connected | Disconnected)]
        assert kinds[:2] == [Connected, Disconnected]
        assert kinds[-1] is Connected

    run(story())


def test_two_agents_ask_and_accept_and_one_blocks_the_other(relay: Relay, tmp_path: Path):
    async def story() -> None:
        async with Agent(tmp_path / "a", url_of(relay)) as a, Agent(tmp_path / "b", url_of(relay)) as b:
            mine, theirs = await a.wait_connected(DEADLINE_S), await b.wait_connected(DEADLINE_S)
            await a.connect(theirs, "may I?", "bob")
            async for item in b.receive(DEADLINE_S):
                assert (item.kind, item.peer, item.text) == ("connection_request", mine, "may I?")
                await item.done()
                break
            await b.accept(mine, "alice")
            async for item in a.receive(DEADLINE_S):
                assert (item.kind, item.plain["accepted"]) == ("connection_response", True)
                await item.done()
                break
            assert [(c.name, str(c.standing)) for c in a.contacts()] == [("bob", "accepted")]
            blocked = await b.block("alice")
            assert await b.wait_state("alice", blocked, ["with the relay", "delivered"], DEADLINE_S) != "queued"
            id = await a.send("bob", "can you hear me?")
            await a.wait_state("bob", id, ["with the relay"], DEADLINE_S)
            assert [item async for item in b.receive(0.2)] == []
            unblocked = await b.unblock("alice")
            await b.wait_state("alice", unblocked, ["with the relay", "delivered"], DEADLINE_S)
            await a.send("bob", "and now?")
            assert await texts(b, 1) == ["and now?"]

    run(story())


def test_a_second_connection_of_the_same_key_is_refused_with_the_reason(relay: Relay, tmp_path: Path):
    async def story() -> None:
        async with Agent(tmp_path / "a", url_of(relay)) as first:
            await first.wait_connected(DEADLINE_S)
            (tmp_path / "copy").mkdir()
            (tmp_path / "copy" / "identity.json").write_bytes((tmp_path / "a" / "identity.json").read_bytes())
            (tmp_path / "copy" / "identity.json").chmod(0o600)
            async with Agent(tmp_path / "copy", url_of(relay)) as second:
                with pytest.raises(RelayRefused, match="address already connected"):
                    await second.wait_connected(DEADLINE_S * 2)
            assert first.connected

    run(story())


def test_a_key_that_is_not_approved_is_refused_with_the_reason(tmp_path: Path):
    (tmp_path / "locked").mkdir()
    relay = Relay(tmp_path / "locked", {"relay.locked": "true"}).start()

    async def story() -> None:
        async with Agent(tmp_path / "a", url_of(relay)) as agent:
            with pytest.raises(RelayRefused, match="key not registered"):
                await agent.wait_connected(DEADLINE_S)
            with pytest.raises(RelayRefused):
                await anext(agent.receive())

    try:
        run(story())
    finally:
        relay.stop()


def test_tls_is_used_where_the_url_says_so_and_a_strange_certificate_is_not_believed(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", str(key), "-out", str(cert), "-subj", "/CN=relay", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    (tmp_path / "tls").mkdir()
    relay = Relay(tmp_path / "tls", {"relay.tls_cert": str(cert), "relay.tls_key": str(key)}).start()

    async def story() -> None:
        url = url_of(relay).replace("ws:", "wss:")
        trusting = ssl.create_default_context(cafile=str(cert))
        async with Agent(tmp_path / "a", url, ssl_context=trusting) as agent:
            await agent.wait_connected(DEADLINE_S)
        told: list[Any] = []
        async with Agent(tmp_path / "a", url, on_happening=told.append) as agent:
            with pytest.raises(TimeoutError):
                await agent.wait_connected(DEADLINE_S, tries=1)
        assert isinstance(told[0], Disconnected)
        assert "certificate" in told[0].reason

    try:
        run(story())
    finally:
        relay.stop()


def test_what_is_not_settled_comes_again(relay: Relay, tmp_path: Path):
    async def story() -> None:
        async with Agent(tmp_path / "a", url_of(relay)) as a, Agent(tmp_path / "b", url_of(relay)) as b:
            theirs = await b.wait_connected(DEADLINE_S)
            await a.send(theirs, "hello")
            for _ in range(2):
                async for item in b.receive(DEADLINE_S):
                    assert item.text == "hello"
                    break
            await item.done()
            assert [item async for item in b.receive(0)] == []

    run(story())


# With a relay that misbehaves.


def test_a_message_that_is_delivered_twice_is_there_once_and_confirmed_twice(tmp_path: Path):
    async def story() -> None:
        relay = Unkind()
        url = await relay.start()
        async with Agent(tmp_path / "a", url) as a, Agent(tmp_path / "b", url) as b:
            await a.wait_connected(DEADLINE_S)
            theirs = await b.wait_connected(DEADLINE_S)
            twice = lambda connection, envelope, data: relay.deliver(envelope.to_address, data)  # noqa: E731
            relay.on_frame = lambda *frame: twice(*frame) if frame[1].type == 4 else False
            await a.send(theirs, "once")
            await relay.until(lambda: len(relay.kinds("delivery_confirm")) == 2)
            assert await texts(b, 1) == ["once"]
            assert [item async for item in b.receive(0)] == []
        await relay.stop()

    run(story())


def test_another_host_behind_the_same_url_is_not_believed(tmp_path: Path):
    async def story() -> None:
        relay = Unkind("first.example")
        url = await relay.start()
        await address_of_new(tmp_path / "a", url)
        relay.host = "second.example"
        async with Agent(tmp_path / "a", url) as agent:
            with pytest.raises(RelayRefused, match=r"second\.example, not of first\.example"):
                await agent.wait_connected(DEADLINE_S)
        await relay.stop()

    run(story())


def test_a_full_queue_is_told_and_the_message_stays(tmp_path: Path):
    async def story() -> None:
        relay = Unkind()
        url = await relay.start()
        told: list[Any] = []
        theirs = address_of(Identity.generate().public_key, relay.host)

        def refuse(connection: Any, envelope: Any, data: bytes) -> bool:
            connection.send(wire.queue_full(envelope.to_address, "the queue is full (1000)", envelope.message_id))
            return True

        relay.on_frame = refuse
        async with Agent(tmp_path / "a", url, on_happening=told.append) as a:
            id = await a.send(theirs, "no room")
            await relay.until(lambda: relay.seen)
            while not any(isinstance(h, QueueFull) for h in told):
                await a.wait_state(theirs, id, [], 0.05)
            await a.engine.amaintain(lambda store: None)
            found = a.book.sent(theirs, id)
            assert found is not None
            assert (found["state"], found["reason"]) == ("queued", "the queue is full (1000)")
        await relay.stop()

    run(story())


def test_a_rate_limit_is_waited_for_and_order_holds(tmp_path: Path):
    async def story() -> None:
        relay = Unkind()
        url = await relay.start()
        told: list[Any] = []
        limited = iter([False, True, True, False, False, False, False])

        def limit(connection: Any, envelope: Any, data: bytes) -> bool:
            if envelope.type == 4 and next(limited):
                connection.send(wire.rate_limited(20, "slow down"))
                return True
            return False

        relay.on_frame = limit
        async with Agent(tmp_path / "b", url) as b, Agent(tmp_path / "a", url, on_happening=told.append) as a:
            theirs = await b.wait_connected(DEADLINE_S)
            for number in range(4):
                await a.send(theirs, str(number))
            assert await texts(b, 4) == ["0", "1", "2", "3"]
            assert [h for h in told if isinstance(h, RateLimited)] == [RateLimited(0.05, "slow down")] * 2
        await relay.stop()

    run(story())


def test_a_message_from_nowhere_is_told_and_not_confirmed(tmp_path: Path):
    async def story() -> None:
        relay = Unkind()
        url = await relay.start()
        told: list[Any] = []
        async with Agent(tmp_path / "a", url, on_happening=told.append) as a:
            mine = await a.wait_connected(DEADLINE_S)
            sender = address_of(Identity.generate().public_key, relay.host)
            relay.deliver(mine, b"\xff")
            relay.deliver(mine, wire.encrypted_message(sender, mine, b"x", 1, bytes(24), bytes(40), bytes(32)))
            while not any(isinstance(h, Ignored) for h in told):
                await a.settle_down(0.02)
            assert relay.seen == []
        await relay.stop()

    run(story())


def test_what_the_relay_swallowed_with_its_connection_is_sent_again(tmp_path: Path):
    async def story() -> None:
        relay = Unkind()
        url = await relay.start()
        async with Agent(tmp_path / "b", url) as b, Agent(tmp_path / "a", url) as a:
            theirs = await b.wait_connected(DEADLINE_S)
            mine = await a.wait_connected(DEADLINE_S)
            relay.answers_pings = False
            relay.on_frame = lambda connection, envelope, data: True
            id = await a.send(theirs, "swallowed")
            await relay.until(lambda: relay.seen)
            relay.on_frame = lambda connection, envelope, data: False
            relay.answers_pings = True
            relay.drop(mine)
            assert await texts(b, 1) == ["swallowed"]
            assert {e.message_id for e in relay.kinds("message")} == {id.encode()}
        await relay.stop()

    run(story())


def test_a_relay_that_hangs_up_before_it_has_answered_is_tried_again(tmp_path: Path):
    async def story() -> None:
        told: list[Any] = []
        twice = asyncio.Event()

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        def note(happening: Any) -> None:
            told.append(happening)
            if len(told) == 2:
                twice.set()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Agent(tmp_path / "agent", f"ws://127.0.0.1:{port}", on_happening=note):
                async with asyncio.timeout(DEADLINE_S):
                    await twice.wait()
        assert [type(happening) for happening in told[:2]] == [Disconnected, Disconnected]

    run(story())


def test_an_agent_is_open_once(tmp_path: Path):
    async def story() -> None:
        async with Agent(tmp_path / "a"):
            with pytest.raises(StoreHeld):
                async with Agent(tmp_path / "a"):
                    pass
        async with Agent(tmp_path / "a") as agent:
            assert agent.address is None
            assert not agent.connected

    run(story())


def test_an_agent_does_without_a_key_only_if_it_may_make_one(tmp_path: Path):
    async def story() -> None:
        with pytest.raises(BadIdentity, match="no identity"):
            async with Agent(tmp_path / "a", create=False):
                pass

    run(story())


def test_what_can_never_be_sent_is_refused_at_once(tmp_path: Path):
    async def story() -> None:
        theirs = address_of(Identity.generate().public_key, "x.example")
        async with Agent(tmp_path / "a") as agent:
            mine = address_of(agent.public_key, "x.example")
            for to, text, words in (
                ("nobody", "x", "no contact is called"),
                ("pinch:abc@host", "x", "36 bytes"),
                (mine, "x", "our own address"),
                (theirs, "x" * 61_440, "at most 61"),
            ):
                with pytest.raises(InvalidInput, match=words):
                    await agent.send(to, text)
            with pytest.raises(InvalidInput, match="at most 280"):
                await agent.connect(theirs, "x" * 281)
            assert agent.book.history(None, 10) == []
            assert agent.contacts() == []

    run(story())


def test_a_relays_url_is_completed_or_refused():
    assert relay_url("ws://host:1") == "ws://host:1/ws"
    assert relay_url("wss://host/") == "wss://host/ws"
    assert relay_url("wss://host/pinch/ws") == "wss://host/pinch/ws"
    for text in ("http://host", "host:1", "ws://", "ws://host:x", "ws://a:b@host", "ws://host?x=y", ""):
        with pytest.raises(InvalidInput):
            relay_url(text)


def test_an_agent_ends_though_its_connection_is_cut_at_the_same_moment(
    relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The end of the connection must not swallow the end of the agent: it would wait for itself for ever."""
    wires: list[client._Wire] = []
    made = client._Wire.__init__

    def kept(wire: client._Wire, agent: Agent, host: str | None) -> None:
        made(wire, agent, host)
        wires.append(wire)

    monkeypatch.setattr(client._Wire, "__init__", kept)

    async def story() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with Agent(tmp_path / "alice", url_of(relay)) as alice:
                await alice.wait_connected(DEADLINE_S)
                wires[0].closed.set()

    run(story())


def test_a_store_is_closed_though_whoever_leaves_is_cancelled_meanwhile(relay: Relay, tmp_path: Path):
    async def story() -> None:
        leaving = asyncio.Event()

        async def visit() -> None:
            async with Agent(tmp_path / "alice", url_of(relay)) as alice:
                await alice.wait_connected(DEADLINE_S)
                leaving.set()

        visitor = asyncio.create_task(visit())
        await leaving.wait()
        # It is in the middle of its end now.
        visitor.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visitor
        # Whoever comes next would be told that the store is held.
        async with Agent(tmp_path / "alice", url_of(relay)) as alice:
            await alice.wait_connected(DEADLINE_S)

    run(story())
