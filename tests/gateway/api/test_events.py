"""Server-sent events: each once, in order, from an offset on, and told where some are missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.gateway.api.desk import HELLO, SEND, Desk, tell

from posthouse.gateway.api.server import Limits
from posthouse.mailbox.command import Post
from posthouse.mailbox.message import Message
from posthouse.mailbox.store import Chunk


class Stream:
    """What comes over one stream."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    async def next(self) -> dict[str, str] | None:
        """The next event's fields; None at the end."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(20):
            while line := (await self._lines.readline()).decode():
                text = line.rstrip("\n")
                if not text and fields:
                    return fields
                name, colon, value = text.partition(": ")
                if colon and name:
                    fields[name] = value
        return None

    async def names(self, count: int) -> list[str]:
        found = []
        for _ in range(count):
            event = await self.next()
            assert event is not None
            found.append(event["event"])
        return found


@asynccontextmanager
async def stream(desk: Desk, query: str = "", token: str | None = None, **headers: str) -> AsyncIterator[Stream]:
    given = {"Authorization": f"Bearer {token or desk.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    async with desk.session.get(f"{desk.url}/v1/events?{query}", headers=given) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        # The first line is sent once the stream listens.
        assert await response.content.readline() == b": welcome\n"
        yield Stream(response.content)


def test_a_message_is_followed_from_its_post_to_its_end(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async with stream(desk) as events:
            await desk.ask("POST", "/v1/inbound", HELLO)
            await desk.handle("good day")
            assert await events.names(4) == ["posted", "leased", "delivered", "posted"]
            await desk.send("whatsapp/default")
            event = await events.next()
            assert event is not None
            data = json.loads(event["data"])
            assert (data["event"], data["desk"], data["mailbox"]) == ("leased", "outbound", "whatsapp/default")
            assert event["id"] == str(data["offset"])
            assert data["cause_id"] is None or data["cause_id"] == "m1"

    tell(story, tmp_path)


def test_a_stream_goes_on_where_it_ended(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async with stream(desk, "desk=inbound") as events:
            for number in range(5):
                await desk.ask("POST", "/v1/inbound", {**HELLO, "id": f"m{number}"})
            ids = [await events.next() for _ in range(2)]
        assert ids[1] is not None
        for number in range(5, 8):
            await desk.ask("POST", "/v1/inbound", {**HELLO, "id": f"m{number}"})
        async with stream(desk, "desk=inbound", Last_Event_ID=ids[1]["id"]) as events:
            found = []
            for _ in range(6):
                event = await events.next()
                assert event is not None
                found.append(json.loads(event["data"])["id"])
            assert found == [f"m{number}" for number in range(2, 8)]

    tell(story, tmp_path)


def test_filters_and_other_desks(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async with stream(desk, "id=m2") as mine, stream(desk, "mailbox=acme&desk=inbound") as tenant:
            await desk.engine.do(Post(Message("relay", "somebody", "m2", b"x")))
            await desk.ask("POST", "/v1/outbound", SEND)
            await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m1"})
            await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m2", "tenant": "acme"})
            for one in (mine, tenant):
                event = await one.next()
                assert event is not None
                data = json.loads(event["data"])
                assert (data["id"], data["mailbox"], data["event"]) == ("m2", "acme", "posted")

    tell(story, tmp_path)


def test_a_token_for_one_tenant_is_told_of_its_inbound_messages_only(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token = await desk.token_for("acme", "events", tenant="acme")
        async with stream(desk, token=token) as events:
            await desk.ask("POST", "/v1/outbound", {**SEND, "tenant": "acme"})
            await desk.ask("POST", "/v1/inbound", HELLO)
            await desk.ask("POST", "/v1/inbound", {**HELLO, "tenant": "acme", "id": "m9"})
            event = await events.next()
            assert event is not None
            assert json.loads(event["data"])["id"] == "m9"

    tell(story, tmp_path)


def test_what_was_trimmed_is_told_as_a_gap(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        for number in range(3):
            await desk.ask("POST", "/v1/inbound", {**HELLO, "id": f"m{number}"})
        answer = await desk.operate("journal.export")
        assert answer
        await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m3"})
        async with stream(desk, "after=0") as events:
            event = await events.next()
            assert event is not None
            assert event["event"] == "gap"
            assert json.loads(event["data"])["missing"] >= 3
            event = await events.next()
            assert event is not None
            assert json.loads(event["data"])["id"] == "m3"

    tell(story, tmp_path)


def test_a_revoked_token_ends_its_stream(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token = await desk.token_for("short", "events")
        async with stream(desk, token=token) as events:
            await desk.operate("token.revoke", called="short")
            await desk.ask("POST", "/v1/inbound", HELLO)
            while await events.next() is not None:
                pass

    tell(story, tmp_path)


def test_a_busy_journal_reaches_several_streams_whole(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async with stream(desk) as one, stream(desk) as other:
            for block in range(10):
                posts = [
                    Post(Message("inbound", "default", f"{block}-{n}", b"{}", lane=f"{n % 7}")) for n in range(100)
                ]
                await desk.engine.apply(*posts)
            for each in (one, other):
                seen = []
                for _ in range(1_000):
                    event = await each.next()
                    assert event is not None
                    seen.append(int(event["id"]))
                assert seen == list(range(seen[0], seen[0] + 1_000))

    tell(story, tmp_path, Limits(waiting_max=5))


def test_a_chunk_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        store = desk.engine.store
        await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m0"})
        damaged = store.offset()
        chunks = store.chunks

        def torn(after: int = 0) -> Iterator[Chunk]:
            for chunk in chunks(after):
                yield chunk._replace(data=b"torn") if chunk.first <= damaged <= chunk.last else chunk

        store.chunks = torn  # type: ignore[method-assign]
        await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m1"})
        async with stream(desk, f"after={damaged - 1}") as events:
            assert await events.names(2) == ["gap", "posted"]
            await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m2"})
            event = await events.next()
            assert event is not None
            assert json.loads(event["data"])["id"] == "m2"

    tell(story, tmp_path)
