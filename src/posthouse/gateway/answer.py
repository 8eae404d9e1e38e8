"""What a handler may answer: replies, or why there are none; and what it is given to answer.

In: a handler's result, as Python values or as JSON. Out: replies, or one of the exceptions below, which the worker
turns into the end of the lease.

    replies            done; they are posted in the same commit
    RetryLater         not now: the attempt counts, and the ladder (or after_s) says when the next one is
    Away               the handler itself was not there: the attempt does not count
    Reject             never: the message becomes a dead letter
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

from ..errors import InvalidInput, PosthouseError
from .letter import Inbound, Json, Reply

REPLIES_MAX = 100
"""Replies to one batch."""
DELAY_S_MAX = 7 * 86_400.0


class RetryLater(PosthouseError):
    """It failed for now. ``after_s`` None: when the ladder says."""

    code = "retry_later"

    def __init__(self, after_s: float | None = None, why: str = "", *, rate_limited: bool = False) -> None:
        super().__init__(why or "the handler asked for a later attempt")
        if after_s is not None and not 0 <= after_s <= DELAY_S_MAX:
            raise InvalidInput(f"after_s must be between 0 and {DELAY_S_MAX:g} seconds: {after_s!r}")
        self.after_s = after_s
        self.rate_limited = rate_limited


class Away(PosthouseError):
    """Nobody was there to handle it; no attempt is lost."""

    code = "away"

    def __init__(self, why: str = "", after_s: float = 5.0) -> None:
        super().__init__(why or "the handler is away")
        self.after_s = after_s


class Reject(PosthouseError):
    """It can never be handled."""

    code = "reject"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected it")


class Work:
    """What a handler works on: a message, or several of one sender that came close together."""

    __slots__ = ("_loop", "_silent_s", "_until_s", "attempt", "due_s", "messages")

    def __init__(self, messages: Sequence[Inbound], attempt: int) -> None:
        assert messages
        self.messages = tuple(messages)
        """In order; nearly always one."""
        self.attempt = attempt
        """1 when it is tried for the first time."""
        self.due_s = math.inf
        """When something must be heard of it, by the event loop's clock; it is given up then."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._silent_s = self._until_s = 0.0

    @property
    def message(self) -> Inbound:
        """The last one, which a reply answers."""
        return self.messages[-1]

    @property
    def session(self) -> str:
        return self.message.lane

    @property
    def tenant(self) -> str:
        return self.message.tenant

    @property
    def text(self) -> str:
        """All texts, a line break between them."""
        return "\n".join(m.text for m in self.messages if m.text)

    @property
    def key(self) -> str:
        """The same for every attempt at this work, and for no other: what a handler may know it by."""
        key = "\0".join((*self.messages[0].ref, *(m.id for m in self.messages[1:])))
        return f"work-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def progress(self) -> None:
        """Say that the work goes on: its time without a word begins anew. From any thread; after its end, no effect."""
        loop = self._loop
        if loop is None:
            return
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            self._put_off()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the work is long over
                loop.call_soon_threadsafe(self._put_off)

    def begin(self, loop: asyncio.AbstractEventLoop, silent_s: float, whole_s: float) -> float:
        """From now on it is due ``silent_s`` after its last progress, and after ``whole_s`` in all; the instant."""
        now_s = loop.time()
        self._loop = loop
        self._silent_s, self._until_s = silent_s, now_s + whole_s
        self.due_s = now_s + min(silent_s, whole_s)
        return self.due_s

    def end(self) -> None:
        """Nobody waits for it any more: progress changes nothing."""
        self._loop = None
        self.due_s = math.inf

    def _put_off(self) -> None:
        if self._loop is not None:
            self.due_s = min(self._loop.time() + self._silent_s, self._until_s)

    def as_json(self) -> Json:
        """What a handler over HTTP or a command is given."""
        return {
            "key": self.key,
            "tenant": self.tenant,
            "session": self.session,
            "attempt": self.attempt,
            "messages": [{"id": m.id, **m.as_json()} for m in self.messages],
        }


class Handler(Protocol):
    """Whoever answers. ``handle`` may be cancelled at any time: then its result is wanted no more."""

    async def handle(self, work: Work) -> tuple[Reply, ...]:
        """The replies, or an exception of this module. Any other exception counts as a failed attempt."""

    async def close(self) -> None:
        """Let go of connections and processes."""


def replies_from(result: object) -> tuple[Reply, ...]:
    """What a Python handler returned, as replies; RetryLater and Reject may be returned as well as raised."""
    if result is None:
        return ()
    if isinstance(result, RetryLater | Away | Reject):
        raise result
    if isinstance(result, str):
        return (Reply.of(result),) if result else ()
    if isinstance(result, Reply):
        return (result,)
    if isinstance(result, list | tuple):
        return _bounded(tuple(reply for one in result for reply in replies_from(one)))
    raise Reject(f"the handler returned {type(result).__name__}; replies are text, Reply, or a list of them")


def replies_from_json(value: object) -> tuple[Reply, ...]:
    """What a handler over HTTP or a command answered.

    ``{"replies": […]}``, ``{"retry_after_s": 5}`` or ``{"reject": "why"}``; nothing, ``null`` and ``{}`` are: done, no
    reply.
    """
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise Reject(f"the handler's answer must be a JSON object, not {type(value).__name__}")
    unknown = set(value) - {"replies", "retry_after_s", "reject", "error"}
    if unknown:
        raise Reject(f"the handler's answer has an unknown field {str(min(unknown))[:60]!r}")
    error = str(value.get("error") or "")[:1_000]
    if "reject" in value:
        raise Reject(str(value["reject"])[:1_000])
    if "retry_after_s" in value:
        after_s = value["retry_after_s"]
        if after_s is not None and (isinstance(after_s, bool) or not isinstance(after_s, int | float)):
            raise Reject("retry_after_s must be a number of seconds, or null")
        try:
            raise RetryLater(after_s, error)
        except InvalidInput as wrong:
            raise Reject(str(wrong)) from wrong
    replies = value.get("replies", [])
    if not isinstance(replies, list):
        raise Reject("replies must be a list")
    try:
        return _bounded(tuple(Reply.from_json(reply) for reply in replies))
    except InvalidInput as wrong:
        raise Reject(f"the handler's answer cannot be used: {wrong}") from wrong


def _bounded(replies: tuple[Reply, ...]) -> tuple[Reply, ...]:
    if len(replies) > REPLIES_MAX:
        raise Reject(f"the handler gave {len(replies)} replies; at most {REPLIES_MAX} are allowed")
    return replies
