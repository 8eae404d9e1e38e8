"""The HTTP API: post inbound and outbound, ask what became of a message, follow events.

In: requests with a token. Out: JSON; errors as problem details. A post is answered when it is durable, and a repeat of
it by the same id changes nothing. Tokens are looked at before bodies are read; bodies, waits and streams are bounded.
It keeps no message and knows no channel: all it does are commands to the engine and reads of its store.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from aiohttp import hdrs, web

from ...control.token import Token
from ...control.view import instant, instant_or_none
from ...engine.engine import Engine
from ...errors import InvalidInput, StoreError
from ...mailbox import outcome as oc
from ...mailbox.command import Post
from ...mailbox.event import Event
from ...mailbox.message import State
from ...mailbox.outcome import Refusal
from ...mailbox.store import MessageView, Store
from .. import strict
from ..letter import INBOUND_DESK, OUTBOUND_DESK, Json
from ..listener import Listener, TooLarge, TooSlow, body
from . import openapi, shape, status
from .access import Access, check_tenant
from .feed import Feed, Told
from .problem import Problem

log = logging.getLogger("posthouse.gateway")

PREFIX = "/v1"
DESKS = (INBOUND_DESK, OUTBOUND_DESK)
FOUND_MAX = 50
BEAT_S = 15.0
"""How often a silent stream of events says that it is still there."""
RETRY_AFTER_S = 5
LINGER_S = 2.0
"""How long the rest of a refused request is still taken: who is cut off while he writes does not see the answer."""
_REFUSED = {Refusal.FULL: "full", Refusal.SHARE: "full", Refusal.OVERSIZE: "oversize", Refusal.TTL: "expired"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may cost."""

    body_bytes_max: int = 1_048_576
    body_s: float = 10.0
    head_s: float = 10.0
    connections_max: int = 1_000
    wait_s_max: float = shape.WAIT_S_MAX
    """However long a request wants to wait."""
    waiting_max: int = 200
    """Requests that wait for a message, and streams of events, all together."""


class Api:
    """The API on one port, from ``start`` to ``close``."""

    def __init__(self, engine: Engine, host: str, port: int, limits: Limits | None = None) -> None:
        self._engine = engine
        self._limits = limits or Limits()
        self._access = Access(engine)
        self.feed = Feed(engine)
        self.waiting = 0
        """Requests that wait for a message, and streams of events."""
        self.answers: Counter[str] = Counter()
        """Requests that were answered, by the code of the problem; ``ok`` where there was none."""
        self.app = web.Application(middlewares=[self._answered])
        self._route()
        self._listener = Listener(
            self.app, host, port, self._limits.connections_max, self._limits.head_s, min(LINGER_S, self._limits.body_s)
        )

    def _route(self) -> None:
        router = self.app.router
        router.add_post(f"{PREFIX}/inbound", self._post_inbound)
        router.add_post(f"{PREFIX}/outbound", self._post_outbound)
        router.add_get(f"{PREFIX}/inbound/{{id}}", self._inbound, allow_head=False)
        router.add_get(f"{PREFIX}/outbound/{{id}}", self._outbound, allow_head=False)
        router.add_get(f"{PREFIX}/events", self._events, allow_head=False)
        router.add_get(f"{PREFIX}/openapi.json", self._document, allow_head=False)

    @property
    def port(self) -> int:
        """The port, once it listens."""
        return self._listener.port

    async def start(self) -> None:
        """Listen; ConfigError if that is not possible."""
        self.feed.start()
        try:
            await self._listener.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End what waits, and listen no more. Idempotent."""
        await self.feed.close()
        await self._listener.close()
        self._access.close()

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._listener.connections

    @property
    def cut(self) -> int:
        """How many were cut: too slow, or one too many."""
        return self._listener.cut

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every error into a problem, and count what was answered."""
        try:
            response = await handler(request)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            problem = error if isinstance(error, Problem) else _problem_of(error)
            self.answers[problem.code] += 1
            return problem.response()
        self.answers["ok"] += 1
        return response

    # Posting

    async def _post_inbound(self, request: web.Request) -> web.StreamResponse:
        token = self._access.token(request, "inbound")
        letter = shape.inbound(await self._json(request))
        check_tenant(token, letter.tenant)
        return await self._posted(token, letter.post())

    async def _post_outbound(self, request: web.Request) -> web.StreamResponse:
        token = self._access.token(request, "outbound")
        letter = shape.outbound(await self._json(request), origin_of(token), self._engine.now())
        check_tenant(token, letter.tenant)
        return await self._posted(token, letter.post())

    async def _json(self, request: web.Request) -> object:
        if request.query_string:
            raise InvalidInput("a post takes no parameters; all of it stands in the body")
        if request.content_type != "application/json":
            raise Problem("unsupported_media_type", "say Content-Type: application/json")
        return strict.loads(await body(request, self._limits.body_bytes_max, self._limits.body_s))

    async def _posted(self, token: Token, post: Post) -> web.Response:
        message = post.message._replace(headers={status.BY: token.name})
        outcome = await self._engine.do(post._replace(message=message))
        plain: Json = {"desk": message.desk, "id": message.id}
        if isinstance(outcome, oc.Posted):
            plain |= {"outcome": "posted", "state": str(State.READY), "status": "pending"}
            return _answer(plain | {"expires_at": instant_or_none(outcome.expires_at)}, 201)
        if isinstance(outcome, oc.Duplicate):
            known = await self._engine.read(lambda store: store.message(message.ref))
            if known is not None and not known.memory and known.message.body != message.body:
                raise Problem("conflict", f"{message.id!r} was posted before with another content; nothing was changed")
            plain |= {"outcome": "duplicate", "state": str(outcome.state), "status": status.STATUS[outcome.state]}
            return _answer(plain | {"expires_at": None if known is None else instant_or_none(known.expires_at)}, 200)
        assert isinstance(outcome, oc.Refused)
        code = _REFUSED.get(outcome.reason)
        assert code is not None, outcome
        headers = {"Retry-After": str(RETRY_AFTER_S)} if code == "full" else {}
        raise Problem(code, f"the desk {message.desk} refused it: {outcome.reason}", headers)

    # Asking

    async def _inbound(self, request: web.Request) -> web.StreamResponse:
        return await self._status(request, INBOUND_DESK, shape.WHICH_INBOUND)

    async def _outbound(self, request: web.Request) -> web.StreamResponse:
        return await self._status(request, OUTBOUND_DESK, shape.WHICH_OUTBOUND)

    async def _status(self, request: web.Request, desk: str, which: tuple[shape.Field, ...]) -> web.Response:
        token = self._access.token(request, "status")
        given = _query(request, (*which, shape.WAIT))
        wait_s = min(given.pop("wait_s", 0), self._limits.wait_s_max)
        id = request.match_info["id"]
        shape.check("id", id, shape.INBOUND[0].schema)
        if not wait_s:
            view = await self._one(token, desk, id, given)
            return await self._told(view)
        with self._place():
            return await self._settled(token, desk, id, given, wait_s)

    async def _settled(self, token: Token, desk: str, id: str, given: Json, wait_s: float) -> web.Response:
        """The message when nothing more is to be expected of it, or as it is when the time has passed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        with self.feed.listen() as listener:
            while True:
                # Looked at after listening began: what changes later is told.
                view = await self._one(token, desk, id, given)
                left_s = until - loop.time()
                if view.state in status.SETTLED or left_s <= 0 or listener.ended:
                    return await self._told(view)
                while left_s > 0 and not listener.ended:
                    told = await listener.take(left_s)
                    if any(one.event.message_id == id for one in told) or listener.missing:
                        listener.missing = 0
                        break
                    left_s = until - loop.time()

    async def _told(self, view: MessageView) -> web.Response:
        return _answer(await self._engine.read(lambda store: status.document(store, view)))

    async def _one(self, token: Token, desk: str, id: str, given: Json) -> MessageView:
        """The one message that is meant; a Problem if there is none, or more than one."""

        def query(store: Store) -> list[MessageView]:
            views = [view for view in store.find(id, FOUND_MAX) if view.message.desk == desk]
            return [view for view in views if _is_meant(view, token, given)]

        found = await self._engine.read(query)
        if not found:
            raise Problem("not_found", f"there is no {desk} message {id!r}, or it was finished long ago")
        if len(found) > 1:
            more = (
                "channel, account, conversation and tenant" if desk == INBOUND_DESK else "channel, account and origin"
            )
            raise Problem("ambiguous", f"{len(found)} {desk} messages have the id {id!r}: say which, by {more}")
        return found[0]

    # Following

    async def _events(self, request: web.Request) -> web.StreamResponse:
        token = self._access.token(request, "events")
        given = _query(request, shape.EVENTS)
        after = given.pop("after", None)
        last = request.headers.get("Last-Event-ID")
        if last is not None:
            after = shape.query({"after": last}, shape.EVENTS)["after"]
        with self._place(), self.feed.listen(after) as listener:
            response = web.StreamResponse(
                headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-store"}
            )
            await response.prepare(request)
            await response.write(b": welcome\n\n")
            while not listener.ended:
                told = await listener.take(BEAT_S)
                lines = [_event(one) for one in told if _is_followed(one.event, token, given)]
                if listener.missing:
                    missing, listener.missing = listener.missing, 0
                    lines.insert(0, f"event: gap\ndata: {json.dumps({'missing': missing})}\n\n")
                await response.write("".join(lines).encode() if lines else b": still here\n\n")
                if self._access.known(request.headers.get("Authorization", "")) is None:
                    break  # the token was revoked meanwhile
            return response

    async def _document(self, request: web.Request) -> web.StreamResponse:
        return _answer(openapi.document())

    def _place(self) -> _Place:
        if self.waiting >= self._limits.waiting_max:
            raise Problem("busy", f"{self.waiting} wait already", {"Retry-After": str(RETRY_AFTER_S)})
        return _Place(self)


class _Place:
    """One of the places for those who wait."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __enter__(self) -> None:
        self._api.waiting += 1

    def __exit__(self, *_: object) -> None:
        self._api.waiting -= 1


def origin_of(token: Token) -> str:
    """Who asked for an outbound message, as the engine's sender: ids are unique for each token."""
    return f"{status.BY}/{token.name}"


def _answer(document: Json, code: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(document),
        status=code,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )


def _query(request: web.Request, known: tuple[shape.Field, ...]) -> Json:
    given = request.query
    if len(set(given)) != len(given):
        raise InvalidInput("a parameter is given twice")
    return shape.query(given, known)


def _is_meant(view: MessageView, token: Token, given: Json) -> bool:
    if token.tenant is not None and status.tenant_of(view) != token.tenant:
        return False
    place = status.place_of(view.message)
    for name, value in given.items():
        if name == "tenant":
            if view.message.mailbox != value:
                return False
        elif name == "origin":
            if view.message.sender not in (value, f"{status.BY}/{value}"):
                return False
        elif place.get(name) != value:
            return False
    return True


def _is_followed(event: Event, token: Token, given: Json) -> bool:
    if event.desk not in DESKS:
        return False
    if token.tenant is not None and (event.desk != INBOUND_DESK or event.mailbox != token.tenant):
        # Of an outbound event nobody can tell whose message it is.
        return False
    names = {"desk": event.desk, "id": event.message_id, "lane": event.lane, "mailbox": event.mailbox}
    return all(names[name] == value for name, value in given.items())


def _event(told: Told) -> str:
    event = told.event
    plain = {
        "offset": told.offset,
        "at": instant(event.at),
        "event": event.event,
        "desk": event.desk,
        "mailbox": event.mailbox,
        "lane": event.lane,
        "lane_seq": event.lane_seq,
        "id": event.message_id,
        "sender": event.sender,
        "attempt": event.attempt,
        "holder": event.holder,
        "reason": event.reason,
        "error": event.error,
        "due_at": instant_or_none(event.due_at),
        "expires_at": instant_or_none(event.expires_at),
        "cause_id": event.cause_id,
    }
    return f"id: {told.offset}\nevent: {event.event}\ndata: {json.dumps(plain)}\n\n"


def _problem_of(error: Exception) -> Problem:
    """What is told of an error; nothing of what went wrong inside."""
    match error:
        case TooLarge():
            return Problem("too_large", str(error))
        case TooSlow():
            return Problem("too_slow", str(error), {"Connection": "close"})
        case InvalidInput():
            return Problem("invalid", str(error))
        case StoreError():
            log.warning("a request to the API found no store: %s", error)
            return Problem("unavailable", "try again", {"Retry-After": str(RETRY_AFTER_S)})
        case web.HTTPNotFound():
            return Problem("not_found", "there is no such address; /v1/openapi.json lists them")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return Problem("method_not_allowed", f"allowed is {allowed}", {"Allow": allowed})
        case web.HTTPException():
            code = "too_large" if error.status == 413 else "invalid"
            return Problem(code, error.reason or "not a request that is taken")
    log.error("a request to the API failed", exc_info=error)
    return Problem("internal", "the gateway's log says more")
