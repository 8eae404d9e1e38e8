"""The channel ``telegram``: a bot, by long polling of the Bot API.

In: updates, each handed over and durable before the next poll confirms it. Out: one call of the API for each part.
The API knows no idempotency key and cannot be asked what became of a call: what was interrupted stays unclear.
A bot's token stands in every URL, so no error's own text and no URL is ever passed on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any, NamedTuple

import aiohttp

from ...errors import InvalidInput
from ...settings import Kind, Setting
from ..channel import Offline, Permanent, RateLimited, SendError, Sending, Sent, Setup, Unclear
from .account import Account, Lost
from .botapi import call_of, inbound_of

log = logging.getLogger("posthouse.gateway")

OPTIONS: tuple[Setting, ...] = (
    Setting("token", Kind.TEXT, None, "The bot's token, as @BotFather gives it.", derived="must be given", secret=True),
    Setting(
        "base_url",
        Kind.TEXT,
        "https://api.telegram.org",
        "Where the Bot API is: Telegram's own server, or one that you run.",
        pattern=r"https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._/-]*)?",
    ),
    Setting("poll_s", Kind.SECONDS, 50.0, "How long the server may wait for an update before it answers.", most=50),
    Setting("timeout_s", Kind.SECONDS, 20.0, "How long the answer to a call may take.", least=0.1, most=600),
    Setting("answer_bytes_max", Kind.WHOLE, 16_777_216, "The largest answer that is read.", least=1_024, most=1 << 30),
)
UPDATES = ("message", "channel_post", "callback_query")
"""The kinds of updates that are asked for."""
ANSWER_S = 10.0
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,100}")


def make(setup: Setup) -> Telegram:
    """The factory."""
    return Telegram(setup)


class Failure(NamedTuple):
    """What the API said instead of a result."""

    code: int
    text: str
    after_s: float | None


class Telegram(Account):
    """One bot."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, OPTIONS)
        token = self.options.secret("token").reveal()
        if not _TOKEN.fullmatch(token):
            raise self.options.wrong("token_file or token_env", "does not lead to a token of a bot: 123456:ABC…")
        self._start = f"{self.options.text('base_url').rstrip('/')}/bot{token}/"
        self._offset = 0
        self._client: aiohttp.ClientSession | None = None
        self._live: Live | None = None

    def connection(self) -> Live | None:
        """The client of this moment; the API is there as long as polling works."""
        return self._live if self.is_up else None

    async def open(self) -> None:
        """The client outlives polls that fail: what is being sent meanwhile is not cut off."""
        self._client = aiohttp.ClientSession(
            # An idle connection is not kept for long: one that is closed while we write makes a send unclear.
            connector=aiohttp.TCPConnector(keepalive_timeout=15.0),
            timeout=aiohttp.ClientTimeout(sock_connect=min(10.0, self.options.seconds("timeout_s"))),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        await super().open()

    async def shut(self) -> None:
        """Close sockets."""
        if self._client is not None:
            await self._client.close()

    async def live(self) -> None:
        """Poll until it fails."""
        assert self._client is not None
        live = Live(self, self._client, self._start)
        try:
            await live.poll()
        finally:
            live.ended = True
            self._live = None

    def opened(self, live: Live, name: str) -> None:
        """The API knows us."""
        self._live = live
        self.came_up(name)

    @property
    def offset(self) -> int:
        """The first update that is not durable yet."""
        return self._offset

    async def updated(self, update: Any) -> None:
        """Hand an update over; it is confirmed by the next poll."""
        number = update.get("update_id") if isinstance(update, dict) else None
        if not isinstance(number, int):
            raise Lost("the server sent something else than updates")
        try:
            inbound = inbound_of(update, self)
        except (InvalidInput, KeyError, TypeError, AttributeError) as error:
            log.error("%r: update %d cannot be read: %s", self, number, type(error).__name__)
            inbound = None
        if inbound is not None:
            await self.keep(inbound)
        self._offset = number + 1


class Live:
    """The API as long as polling works."""

    def __init__(self, account: Telegram, client: aiohttp.ClientSession, start: str) -> None:
        self._account = account
        self._client = client
        self._start = start
        self.ended = False

    async def poll(self) -> None:
        """Ask who we are, then for updates, again and again."""
        account = self._account
        timeout_s, poll_s = account.options.seconds("timeout_s"), account.options.seconds("poll_s")
        me = await self._polled("getMe", {}, timeout_s)
        name = me.get("username") if isinstance(me, dict) else None
        account.opened(self, f"@{name}" if isinstance(name, str) else "")
        while True:
            asked = {"offset": account.offset, "timeout": int(poll_s), "allowed_updates": UPDATES}
            updates = await self._polled("getUpdates", asked, poll_s + timeout_s)
            if not isinstance(updates, list):
                raise Lost("the server sent something else than updates")
            for update in updates:
                await account.updated(update)
                if isinstance(update.get("callback_query"), dict):
                    account.spawn(self._release(update["callback_query"].get("id")))

    async def _release(self, query: Any) -> None:
        """A button that was pressed turns until it is told that somebody noticed; if that fails, it stops by itself."""
        try:
            await self._call("answerCallbackQuery", {"callback_query_id": query}, ANSWER_S)
        except (Offline, Unclear) as error:
            log.debug("%r: a button was not released: %s", self._account, error)

    async def _polled(self, method: str, values: dict[str, Any], timeout_s: float) -> Any:
        try:
            result = await self._call(method, values, timeout_s)
        except (Offline, Unclear) as error:
            raise Lost(str(error)) from None
        if isinstance(result, Failure):
            raise Lost(f"{method}: the server answered {result.code} ({result.text})", after_s=result.after_s or 0.0)
        return result

    async def _call(self, method: str, values: dict[str, Any], timeout_s: float, document: bytes | None = None) -> Any:
        """The result of a call, or the Failure that came instead; Offline or Unclear if none of both came."""
        limit = self._account.options.whole("answer_bytes_max")
        body: dict[str, Any] = {"json": values} if document is None else {"data": _form(values, document)}
        try:
            async with asyncio.timeout(timeout_s):
                async with self._client.post(self._start + method, **body, allow_redirects=False) as answer:
                    data = bytearray()
                    async for chunk in answer.content.iter_any():
                        data += chunk
                        if len(data) > limit:
                            raise Unclear(f"an answer of more than {limit} bytes")
                    status = answer.status
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Offline(f"cannot connect: {getattr(error, 'os_error', None) or type(error).__name__}") from None
        except TimeoutError:
            raise Unclear("no answer came in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unclear(f"the connection ended before the answer came: {type(error).__name__}") from None
        return self._read(status, bytes(data))

    def _read(self, status: int, data: bytes) -> Any:
        try:
            # Not strictly: one odd update would keep all others from being read. Each is looked at by itself.
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or "ok" not in value:
            # Not the API's own words: somebody in between.
            return Failure(status if status >= 400 else 502, "no answer of the API", None)
        if value["ok"] is True:
            return value.get("result")
        code, more = value.get("error_code"), value.get("parameters")
        after = more.get("retry_after") if isinstance(more, dict) else None
        return Failure(
            code if isinstance(code, int) else status,
            self._account.scrub(value.get("description") or "no reason", 200),
            float(after) if isinstance(after, int) and 0 < after <= 86_400 else None,
        )

    # Out.

    async def send(self, sending: Sending) -> Sent:
        """One part: one call."""
        if self.ended:
            raise Offline("the connection is gone")
        call = call_of(sending)
        result = await self._call(*call[:2], self._account.options.seconds("timeout_s"), call.document)
        if isinstance(result, Failure):
            raise _error_of(result)
        first = result[0] if isinstance(result, list) and result else result
        number = first.get("message_id") if isinstance(first, dict) else None
        return Sent("" if number is None else str(number))


def _error_of(failure: Failure) -> SendError:
    told = f"{failure.text} ({failure.code})"
    if failure.code == 429:
        return RateLimited(failure.after_s or 30.0, told)
    if failure.code in (401, 409):
        # The account's trouble, not the message's: it waits until somebody sees to it.
        return Offline(told, 60.0)
    if failure.code >= 500:
        return Unclear(told)
    return Permanent(told)


def _form(values: dict[str, Any], document: bytes) -> aiohttp.FormData:
    """A call with a file."""
    form = aiohttp.FormData()
    for name, value in values.items():
        form.add_field(name, value if isinstance(value, str) else json.dumps(value))
    form.add_field("document", document, filename="message.txt", content_type="text/plain; charset=utf-8")
    return form
