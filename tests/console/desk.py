"""A running console on a real store, visitors of every role, and what a page shows, read from its HTML."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp

from posthouse.config import Config, Given, load
from posthouse.console import setup
from posthouse.console.server import Console
from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.control.operator import open_store
from posthouse.engine.clock import Clock
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Leased, Settled

ROLES = ("viewer", "operator", "admin")


class Desk:
    """What a test works with."""

    def __init__(self, engine: Engine, config: Config, console: Console) -> None:
        self.engine = engine
        self.config = config
        self.console = console
        self.tokens: dict[str, str] = {}
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    @property
    def url(self) -> str:
        return self.console.address

    @property
    def login_url(self) -> str:
        """A new one-time address, as the start-up summary has it."""
        return setup.log_in_url(self.console, self.config)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def operate(self, name: str, **parameters: Any) -> Any:
        """What an operator does, on a thread of his own as the control socket has."""
        context = Context(self.engine, self.config, "operator:test", lambda done, total, doing: None)
        return await asyncio.to_thread(run, context, name, parameters)

    def browser(self) -> aiohttp.ClientSession:
        """A client with a memory for cookies, also of addresses without a name."""
        return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def session(self, role: str) -> aiohttp.ClientSession:
        """A browser that is logged in as this; '' is one that is not."""
        if role not in self._sessions:
            self._sessions[role] = session = self.browser()
            if role:
                async with session.get(f"{self.url}/login") as response:
                    form = Html(await response.text()).forms["/login"]
                form["token"] = self.tokens[role]
                async with session.post(f"{self.url}/login", data=form, allow_redirects=False) as response:
                    assert response.status == 303, await response.text()
        return self._sessions[role]

    async def get(self, path: str, role: str = "admin", **options: Any) -> tuple[int, str]:
        """A page: its status and its HTML."""
        session = await self.session(role)
        async with session.get(self.url + path, **{"allow_redirects": False, **options}) as response:
            return response.status, await response.text()

    async def page(self, path: str, role: str = "admin") -> Html:
        """A page that must be there."""
        status, text = await self.get(path, role)
        assert status == 200, (path, status, text)
        return Html(text)

    async def csrf(self, role: str) -> str:
        """The mark of this role's forms."""
        return (await self.page("/", role)).meta["csrf"]

    async def do(
        self, act: str, fields: dict[str, str] | None = None, role: str = "operator", **options: Any
    ) -> tuple[int, str]:
        """Send a form with its mark; a long act is waited for."""
        session = await self.session(role)
        form = {"csrf": await self.csrf(role), "next": "/audit", **(fields or {})}
        async with session.post(f"{self.url}/do/{act}", data=form, allow_redirects=False, **options) as response:
            text = await response.text()
            if response.status == 303 and response.headers["Location"].startswith("/jobs/"):
                job = self.console.jobs.get(response.headers["Location"].removeprefix("/jobs/").partition("?")[0])
                async with asyncio.timeout(30):
                    await job.ended.wait()
                return response.status, json.dumps(job.as_json())
            return response.status, text

    async def api(
        self, method: str, path: str, value: Any = None, *, role: str = "admin", **options: Any
    ) -> tuple[int, Any]:
        """A request to the API with this role's token; '' is none."""
        session = await self.session("")
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} if role else {}
        headers |= options.pop("headers", {})
        if value is not None:
            options["json"] = value
        async with session.request(method, self.url + path, headers=headers, **options) as response:
            text = await response.text()
            if response.status >= 400:
                assert response.content_type == "application/problem+json", text
                assert json.loads(text)["status"] == response.status
            return response.status, json.loads(text)

    # What happens to messages meanwhile.

    async def post(self, *ids: str, desk: str = "inbound", mailbox: str = "alice", **fields: Any) -> None:
        await self.engine.apply(*(Post(Message(desk, mailbox, id, **{"body": b"hello", **fields})) for id in ids))

    async def lease(self, desk: str, mailbox: str, holder: str = "worker") -> Message:
        """Take the next message of a mailbox; its token is its holder."""
        (leased,) = await self.engine.apply(Lease(desk, mailbox, holder, holder=holder))
        assert isinstance(leased, Leased)
        return leased.deliveries[0].message

    async def settle(
        self, message: Message, verdict: Verdict, error: str | None = None, holder: str = "worker"
    ) -> None:
        outcome = await self.engine.do(Settle(message.ref, holder, verdict, error=error))
        assert isinstance(outcome, Settled)


class Html(HTMLParser):
    """A page: its texts by their data-… attributes, its forms, its links, and its whole text."""

    VOID = frozenset({"meta", "link", "input", "br", "img", "rect", "line", "circle", "polyline", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.meta: dict[str, str] = {}
        self.forms: dict[str, dict[str, str]] = {}
        """The fields of the first form for each target."""
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.data: dict[tuple[str, str], str] = {}
        """The text of what has an attribute data-NAME with a value."""
        self.text = ""
        self._open: list[tuple[str, list[tuple[str, str]]]] = []
        self._form: dict[str, str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag == "meta" and "name" in given:
            self.meta[given["name"]] = given["content"]
        elif tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "form":
            self._form = self.forms.setdefault(given.get("action", ""), {})
        elif tag == "input" and self._form is not None and given.get("type") == "hidden":
            self._form.setdefault(given["name"], given.get("value", ""))
        if tag not in self.VOID:
            marks = [(name.removeprefix("data-"), value) for name, value in given.items() if name.startswith("data-")]
            # Of several with the same mark, the first.
            marks = [mark for mark in marks if mark not in self.data]
            self.data.update(dict.fromkeys(marks, ""))
            self._open.append((tag, marks))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        if tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        self.text += data
        for _, marks in self._open:
            for mark in marks:
                self.data[mark] += data

    def said(self, name: str, value: str = "") -> str:
        """The text of the element with data-NAME=VALUE."""
        return " ".join(self.data[name, value].split())

    def number(self, name: str, value: str) -> int:
        """The number in it."""
        return int(self.said(name, value).replace(",", ""))


@asynccontextmanager
async def desk(folder: Path, toml: str = "", clock: Clock | None = None, **settings: str) -> AsyncIterator[Desk]:
    (folder / "posthouse.toml").write_text(toml)
    given = {"console.port": "0", **{name.replace("__", "."): value for name, value in settings.items()}}
    config = load({}, folder, {name: Given(value, "test") for name, value in given.items()})
    async with Engine(open_store(config, create=True), clock=clock) as engine:
        console = setup.make(config, engine)
        made = Desk(engine, config, console)
        try:
            await console.start()
            for role in ROLES:
                made.tokens[role] = (await made.operate("token.add", called=f"{role}-token", role=role))["token"]
            yield made
        finally:
            await made.close()
            await console.close()


Story = Callable[[Desk], Awaitable[None]]


def tell(story: Story, folder: Path, toml: str = "", clock: Clock | None = None, **settings: str) -> None:
    """Run a story on a console of its own; settings by name, with __ in place of the dot."""

    async def told() -> None:
        async with desk(folder, toml, clock, **settings) as made:
            await story(made)

    asyncio.run(told())
