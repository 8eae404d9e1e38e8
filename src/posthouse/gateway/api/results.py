"""Results: whoever posted a message over the API is told what became of it, by a message that is as durable.

In: the journal's events. Out: for each message that came over the API and is finished or set aside, an outbound
message to the account ``result/default``, with the same document that asking for the message gives; the channel below
brings it to a webhook or a command (``gateway.results``). It is posted in the same commit as the place in the journal
up to which results were told, so a crash neither forgets one nor tells it twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import orjson

from ...engine.engine import Engine
from ...engine.tail import Tail
from ...errors import ConfigError, InvalidInput
from ...mailbox import event as ev
from ...mailbox.command import Command, Keep, Post
from ...mailbox.event import Event
from ...mailbox.message import SECOND, Ref
from ..alerts import AlertChannel
from ..letter import INBOUND_DESK, OUTBOUND_DESK, Outbound, Part
from ..signature import Key
from . import status

log = logging.getLogger("posthouse.gateway")

KIND = "result"
ACCOUNT = "default"
SHELF = "gateway"
CURSOR = "results"
CURSOR_EVERY = 10_000
"""Events after which the place in the journal is kept, results or not."""
KEPT_S = 7 * 86_400
"""How long a result may wait for whoever is to be told."""
TOLD = frozenset({ev.DELIVERED, ev.DIED, ev.EXPIRED, ev.CANCELLED, ev.PARKED, ev.UNCERTAIN})
DESKS = frozenset({INBOUND_DESK, OUTBOUND_DESK})


class ResultChannel(AlertChannel):
    """Brings results to a webhook or a command."""

    kind = KIND
    account = ACCOUNT


class Results:
    """Follows the journal from ``start`` to ``close``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        kept = engine.store.kept_value(SHELF, CURSOR)
        # What was finished before there was anybody to tell is old news.
        self._kept = -1 if kept is None else int(orjson.loads(kept))
        self._offset = engine.store.offset() if kept is None else self._kept
        self._tail = Tail(engine, self._offset)
        self._tail.listen(self._told)

    def start(self) -> None:
        """Begin; on a running event loop."""
        self._tail.start()

    async def close(self) -> None:
        """Tell of what has happened by now, and stop. Idempotent."""
        await self._tail.close()

    def _told(self, events: Sequence[Event], last: int, gap: bool) -> None:
        """Look for results among these; on the thread that reads the journal."""
        if gap:
            log.warning("part of the journal was exported unread: results of that time are told to nobody")
        commands: list[Command] = []
        for event in events:
            if event.event in TOLD and event.desk in DESKS:
                commands += self._result(event)
        self._offset = last
        if commands or last - self._kept >= CURSOR_EVERY:
            self._engine.call(*commands, Keep(SHELF, CURSOR, orjson.dumps(last)))
            self._kept = last

    def _result(self, event: Event) -> list[Command]:
        store = self._engine.store
        view = store.message(Ref(event.desk, event.mailbox, event.sender, event.message_id))
        if view is None or status.BY not in view.message.headers:
            return []
        message = view.message
        key = "\0".join((*message.ref, str(view.life), event.event, str(event.attempt)))
        result = Outbound(
            id=f"result-{hashlib.sha256(key.encode()).hexdigest()[:32]}",
            channel=KIND,
            to=message.headers[status.BY],
            thread=message.lane,
            parts=(Part(f"{message.desk} {message.id}: {view.state}", extra=status.document(store, view)),),
            account=ACCOUNT,
            origin=KIND,
            expires_at=self._engine.now() + KEPT_S * SECOND,
        )
        return [Post(result.message(), exempt=True)]


def result_channel(target: str | None, key: str | None) -> ResultChannel | None:
    """The channel that the settings describe; ConfigError where they do not fit together."""
    if target is None:
        if key is not None:
            raise ConfigError("gateway.results_key is set and gateway.results is not: nobody would be told")
        return None
    try:
        return ResultChannel(target, [] if key is None else [Key(key)])
    except InvalidInput as error:
        raise ConfigError(f"gateway.results: {error}") from error
