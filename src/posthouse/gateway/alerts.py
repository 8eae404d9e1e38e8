"""Alerts: whoever minds the gateway is told of each dead letter, by a message that is as durable as any other.

In: the journal's events of the gateway's desks. Out: a line in the log for each dead letter and, where somebody is to
be told (``gateway.alert``), an outbound message to the account ``alert/default``, with all that is known of the dead
one; the channel below brings it to a webhook or a command. It is posted in the same commit as the place in the journal
up to which deaths were told, so a crash neither forgets an alert nor tells it twice. Of alerts that die themselves
only the log tells.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence

import aiohttp
import orjson

from .. import callee
from ..engine.engine import Engine
from ..errors import ConfigError, InvalidInput
from ..mailbox import event as ev
from ..mailbox.command import Command, Filter, Keep, Post
from ..mailbox.event import Event
from ..mailbox.message import SECOND, Instant, State
from ..mailbox.store import MessageView
from .channel import Permanent, Port, RateLimited, Sending, Sent, Transient, Unclear
from .handlers.http import retry_after_s
from .letter import INBOUND_DESK, OUTBOUND_DESK, Json, Outbound, Part, outbound_mailbox
from .signature import Key, signed

log = logging.getLogger("posthouse.gateway")

KIND = "alert"
ACCOUNT = "default"
MAILBOX = outbound_mailbox(KIND, ACCOUNT)
SHELF = "gateway"
CURSOR = "alerts"
DESKS = frozenset({INBOUND_DESK, OUTBOUND_DESK})
KEPT_S = 30 * 86_400
"""How long an alert may wait for whoever is to be told."""
BODY_BYTES_MAX = 64 * 1024
"""Of a dead letter's body, no more than this goes into its alert."""
CURSOR_EVERY = 10_000
"""Events after which the place in the journal is kept, deaths or not."""
PAGE = 100
_SAID_CHARS_MAX = 500


class Alerts:
    """Listens to the journal. Its methods are called on the thread that reads it."""

    def __init__(self, engine: Engine, *, wanted: bool) -> None:
        """``wanted`` False: the log is enough."""
        self._engine = engine
        self._wanted = wanted
        kept = engine.store.kept_value(SHELF, CURSOR)
        if kept is None:
            # What died before there was anybody to tell of it is old news.
            self._kept, self._offset, self._at = -1, engine.store.offset(), engine.now()
        else:
            place = orjson.loads(kept)
            self._kept = self._offset = int(place["offset"])
            self._at = int(place["at"])

    @property
    def after(self) -> int:
        """The offset behind which to begin to read."""
        return self._offset

    def told(self, events: Sequence[Event], last: int, gap: bool) -> None:
        """Look for deaths among these."""
        commands: list[Command] = []
        if gap:
            # What was exported while no gateway ran is still among the dead.
            commands += self._missed(self._at)
        for event in events:
            if event.event == ev.DIED and event.desk in DESKS:
                commands += self._died(event)
        if events:
            self._at = max(self._at, events[-1].at)
        self._offset = last
        if commands or last - self._kept >= CURSOR_EVERY:
            self.keep(commands)

    def keep(self, commands: Sequence[Command] = ()) -> None:
        """Keep the place, with what is to be posted; blocking."""
        if self._offset == self._kept and not commands:
            return
        place = orjson.dumps({"offset": self._offset, "at": self._at})
        self._engine.call(*commands, Keep(SHELF, CURSOR, place))
        self._kept = self._offset

    def _missed(self, since: Instant) -> list[Command]:
        commands: list[Command] = []
        for desk in sorted(DESKS):
            after = 0
            wanted = Filter(desk, states=frozenset({State.DEAD}))
            while page := self._engine.store.messages(wanted, after, PAGE):
                after = page[-1].number
                for view in page:
                    if view.since is not None and view.since > since:
                        commands += self._alert(view, view.since)
        return commands

    def _died(self, event: Event) -> list[Command]:
        for view in self._engine.store.find(event.message_id):
            message = view.message
            if (message.desk, message.mailbox, message.sender) == (event.desk, event.mailbox, event.sender):
                return self._alert(view, event.at, event)
        return []

    def _alert(self, view: MessageView, died_at: Instant, event: Event | None = None) -> list[Command]:
        message = view.message
        reason = (event.reason if event else view.reason) or ""
        if view.attempts == 0 and reason != "deadline":
            return []  # nobody tried it here: it was imported, and died elsewhere long ago
        error = (event.error if event else view.error) or ""
        log.error(
            "dead letter %s of %s %s, lane %s, after %d attempts: %s%s",
            message.id, message.desk, message.mailbox, message.lane, view.attempts, reason,
            f" ({error[:_SAID_CHARS_MAX]})" if error else "",
            extra={
                "desk": message.desk, "mailbox": message.mailbox, "lane": message.lane, "message_id": message.id,
                "attempts": view.attempts, "reason": reason, "error": error[:_SAID_CHARS_MAX],
            },
        )  # fmt: skip
        if not self._wanted or message.mailbox == MAILBOX:
            return []
        key = "\0".join((*message.ref, str(view.life)))
        alert = Outbound(
            id=f"dead-{hashlib.sha256(key.encode()).hexdigest()[:32]}",
            channel=KIND,
            to="operator",
            parts=(Part(f"dead letter {message.id}: {reason}", extra=_context(view, died_at, reason, error)),),
            account=ACCOUNT,
            origin=KIND,
            expires_at=self._engine.now() + KEPT_S * SECOND,
        )
        return [Post(alert.message(), exempt=True)]


def _context(view: MessageView, died_at: Instant, reason: str, error: str) -> Json:
    """All that is known of a dead letter."""
    message = view.message
    content: object = None
    if len(message.body) <= BODY_BYTES_MAX:
        try:
            content = orjson.loads(message.body)
        except orjson.JSONDecodeError:
            content = message.body.decode(errors="replace")
    return {
        "type": "dead_letter",
        "desk": message.desk,
        "mailbox": message.mailbox,
        "lane": message.lane,
        "lane_seq": view.seq,
        "id": message.id,
        "sender": message.sender,
        "cause": message.cause,
        "posted_at_us": view.posted_at,
        "died_at_us": died_at,
        "attempts": view.attempts,
        "progress": view.progress,
        "reason": reason,
        "error": error,
        "size_bytes": len(message.body),
        "content": content,
    }


class AlertChannel:
    """Brings alerts to a webhook or a command. Their ids are given along, so one that comes twice is known."""

    kind = KIND
    account = ACCOUNT
    idempotent = True

    def __init__(self, target: str, keys: Sequence[Key] = ()) -> None:
        """``target``: a URL, or ``command:`` and a command line."""
        self._keys = tuple(keys)
        self._words = (
            callee.words_of("gateway.alert", target.removeprefix("command:")) if target.startswith("command:") else None
        )
        self._url = target
        self._client: aiohttp.ClientSession | None = None

    async def start(self, port: Port) -> None:
        """It is there at once: nothing is kept open."""
        port.up(KIND)

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def connection(self) -> AlertChannel:
        return self

    async def send(self, sending: Sending) -> Sent:
        """Tell of one dead letter."""
        body = orjson.dumps({"key": sending.key, "text": sending.part.text, **sending.part.extra})
        if self._words is not None:
            return await self._run(self._words, body)
        return await self._post(sending.key, body)

    async def _post(self, key: str, body: bytes) -> Sent:
        if self._client is None:
            self._client = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        headers = {"content-type": "application/json", "webhook-id": key}
        if self._keys:
            headers |= signed(self._keys, key, int(time.time()), body)
        try:
            async with self._client.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                status = response.status
                after_s = retry_after_s(response.headers.get("retry-after"), time.time())
        except aiohttp.ClientConnectorError as error:
            raise Transient(f"cannot be reached: {error.os_error.strerror or error}") from error
        except aiohttp.ClientError as error:
            raise Unclear(f"{type(error).__name__}: {error}") from error
        if 200 <= status < 300:
            return Sent()
        if status == 410 or (300 <= status < 500 and status not in (408, 425, 429)):
            raise Permanent(f"answered {status}")
        if after_s is not None:
            raise RateLimited(after_s, f"answered {status}, again after {after_s:g} s")
        raise Transient(f"answered {status}")

    async def _run(self, words: list[str], body: bytes) -> Sent:
        try:
            process = await callee.start(words)
        except OSError as error:
            raise Transient(f"cannot be started: {error.strerror or error}") from error
        try:
            _, said = await asyncio.gather(callee.write(process, body + b"\n"), callee.tail(process))
            status = await process.wait()
        finally:
            await callee.end(process)
        if status != 0:
            raise Transient(f"ended with {status}: {said}".rstrip(": "))
        return Sent()


def alert_channel(target: str | None, key: str | None) -> AlertChannel | None:
    """The channel that the settings describe; ConfigError where they do not fit together."""
    if target is None:
        if key is not None:
            raise ConfigError("gateway.alert_key is set and gateway.alert is not: nobody would be told")
        return None
    try:
        return AlertChannel(target, [] if key is None else [Key(key)])
    except InvalidInput as error:
        raise ConfigError(f"gateway.alert: {error}") from error
