"""A running API with tokens, and a client; the store is a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from posthouse.config import Config, load
from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.gateway.api.feed import Listener
from posthouse.gateway.api.server import Api, Limits
from posthouse.gateway.letter import Inbound, Reply
from posthouse.mailbox.command import Lease, Post, Settle, Together, Verdict
from posthouse.mailbox.outcome import Done, Leased, Settled

HELLO = {"id": "m1", "channel": "whatsapp", "conversation": "chat 1", "from": "ann", "text": "hello"}
SEND = {"id": "o1", "channel": "whatsapp", "to": "chat 1", "text": "good day"}


class Desk:
    """What a test works with."""

    def __init__(self, engine: Engine, config: Config, api: Api) -> None:
        self.engine = engine
        self.config = config
        self.api = api
        self.session = aiohttp.ClientSession()
        self.token = ""
        self._listens = asyncio.Condition()
        listen = api.feed.listen

        @contextmanager
        def told(after: int | None = None) -> Iterator[Listener]:
            with listen(after) as listener:
                self._told = asyncio.create_task(self._tell())
                yield listener

        api.feed.listen = told  # type: ignore[method-assign]

    async def _tell(self) -> None:
        async with self._listens:
            self._listens.notify_all()

    async def until_listening(self, count: int = 1) -> None:
        """Wait until so many requests wait for something."""
        async with asyncio.timeout(20), self._listens:
            await self._listens.wait_for(lambda: self.api.feed.listening >= count)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api.port}"

    async def operate(self, name: str, **parameters: Any) -> Any:
        """What an operator does, on a thread of his own as the control socket has."""
        context = Context(self.engine, self.config, "operator:test", lambda done, total, doing: None)
        return await asyncio.to_thread(run, context, name, parameters)

    async def token_for(self, name: str, *scopes: str, tenant: str | None = None) -> str:
        answer = await self.operate("token.add", called=name, scopes=list(scopes), tenant=tenant)
        return str(answer["token"])

    async def ask(
        self, method: str, path: str, value: Any = None, *, token: str | None = None, **options: Any
    ) -> tuple[int, Any]:
        """One request; its status and the JSON that came."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"} | options.pop("headers", {})
        if value is not None:
            options["json"] = value
        async with self.session.request(method, self.url + path, headers=headers, **options) as response:
            text = await response.text()
            if response.status >= 400:
                assert response.content_type == "application/problem+json", text
                problem = json.loads(text)
                assert problem["status"] == response.status
                return response.status, problem
            return response.status, json.loads(text)

    async def handle(self, *replies: str) -> None:
        """Work off the next inbound message, with these replies."""
        (leased,) = await self.engine.apply(Lease("inbound", None, "worker"))
        assert isinstance(leased, Leased)
        (delivery,) = leased.deliveries
        asked = Inbound.from_message(delivery.message)
        posts = [
            Post(Reply.of(text).answering(asked, number, self.engine.now()).message())
            for number, text in enumerate(replies)
        ]
        outcome = await self.engine.do(Together((Settle(asked.ref, "worker", Verdict.DELIVERED), *posts)))
        assert isinstance(outcome, Done)

    async def send(self, mailbox: str, verdict: Verdict = Verdict.DELIVERED, error: str | None = None) -> None:
        """Let the next outbound message of an account come to this."""
        (leased,) = await self.engine.apply(Lease("outbound", mailbox, "courier"))
        assert isinstance(leased, Leased)
        (delivery,) = leased.deliveries
        outcome = await self.engine.do(Settle(delivery.message.ref, "courier", verdict, error=error))
        assert isinstance(outcome, Settled)


@asynccontextmanager
async def desk(folder: Path, limits: Limits | None = None, **settings: Any) -> AsyncIterator[Desk]:
    lines = [f"[desk.{name}]\n{text}\n" for name, text in settings.items()]
    (folder / "posthouse.toml").write_text("\n".join(lines))
    config = load({}, folder)
    async with Engine(open_store(config, create=True)) as engine:
        api = Api(engine, "127.0.0.1", 0, limits)
        await api.start()
        made = Desk(engine, config, api)
        try:
            made.token = await made.token_for("all", "inbound", "outbound", "status", "events")
            yield made
        finally:
            await made.session.close()
            await api.close()


Story = Callable[[Desk], Awaitable[None]]


def tell(story: Story, folder: Path, limits: Limits | None = None, **settings: Any) -> None:
    """Run a story on a desk of its own."""

    async def told() -> None:
        async with desk(folder, limits, **settings) as made:
            await story(made)

    asyncio.run(told())
