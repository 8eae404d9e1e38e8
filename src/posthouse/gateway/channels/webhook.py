"""The channel ``webhook``: messages as signed HTTP requests, in and out (Standard Webhooks 1.0).

In: POST requests on a port of its own, each a message as a JSON object (``plain.FIELDS``); answered with 202 when it
is durable. Out: POST requests to the account's URL, or to the URL that a message names as its target.
It never follows a redirect, and connects to no address that is not public unless a setting allows it.
"""

from __future__ import annotations

import email.utils
import hashlib
import json
import logging
import time
from collections.abc import Mapping

import aiohttp
from aiohttp import web

from ...errors import BadSignature, ConfigError, InvalidInput, StoreError
from ...settings import Kind, Setting
from .. import strict
from ..channel import NotAccepted, Permanent, RateLimited, SendError, Sending, Sent, Setup, Transient, Unclear
from ..listener import Listener, TooLarge, TooSlow, body
from ..signature import ID, Key, signed, verified
from ..target import Guard, is_refusal, networks
from .account import PASSING, Account
from .plain import inbound_from, outbound_as_json

log = logging.getLogger("posthouse.gateway")

OPTIONS: tuple[Setting, ...] = (
    Setting(
        "url",
        Kind.PLACE,
        None,
        "Where messages are sent.",
        derived="the URL in a message's `to`",
        secret=True,
    ),
    Setting(
        "key",
        Kind.TEXT,
        None,
        "The key that signs: `whsec_` and base64. While it is changed, the new and the old one with a blank between.",
        derived="none: what is sent is not signed",
        secret=True,
    ),
    Setting(
        "allow",
        Kind.TEXT,
        None,
        "Networks that may be sent to although they are not public, such as `127.0.0.1` or `10.1.0.0/16`.",
        derived="none",
    ),
    Setting("timeout_s", Kind.SECONDS, 20.0, "How long the answer to a request may take.", least=0.1, most=600),
    Setting(
        "idempotent",
        Kind.SWITCH,
        True,
        "Whether the receiver knows a repeated request by its `webhook-id`. If not, an unclear send is not repeated.",
    ),
    Setting("host", Kind.TEXT, "127.0.0.1", "The address to listen on; `*` is every address that the machine has."),
    Setting(
        "port",
        Kind.WHOLE,
        None,
        "The port on which requests are taken; 0 takes any free one.",
        derived="none: nothing is received",
        most=65_535,
    ),
    Setting("path", Kind.TEXT, "/", "The path of those requests.", pattern=r"/[A-Za-z0-9/_.~-]{0,200}"),
    Setting("unsigned", Kind.SWITCH, False, "Whether requests are taken that nobody signed."),
    Setting("body_bytes_max", Kind.WHOLE, 262_144, "The largest body that is taken.", least=1, most=16_777_216),
    Setting("head_s", Kind.SECONDS, 10.0, "How long a request may take up to its body.", least=0.1, most=600),
    Setting("body_s", Kind.SECONDS, 10.0, "How long a body may take to come.", least=0.1, most=600),
    Setting("connections_max", Kind.WHOLE, 1_000, "Connections at once; more are cut.", least=1, most=100_000),
)
CONNECT_S = 10.0
ANSWER_BYTES_MAX = 65_536
"""As much of an answer's body is read."""
RETRY_AFTER_S = 30.0
RETRY_AFTER_CAP_S = 86_400.0


def make(setup: Setup) -> Webhook:
    """The factory."""
    return Webhook(setup)


class Webhook(Account):
    """One account: where to send, with which key, and where to listen."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, OPTIONS)
        options = self.options
        self.idempotent = options.switch("idempotent")
        self._unsigned = options.switch("unsigned")
        self._guard = Guard(networks(options.texts("allow")))
        key = options.secret_or_none("key")
        try:
            self._keys = [Key(text) for text in key.reveal().split()] if key is not None else []
        except ConfigError as error:
            raise options.wrong("key_file or key_env", f"does not lead to a key: {error}") from None
        url = options.secret_or_none("url")
        self._url = None if url is None else url.reveal()
        if self._url is not None:
            try:
                self._guard.check_url(self._url)
            except InvalidInput as error:
                raise options.wrong("url", f"is no target: {error}") from None
        port = options.whole_or_none("port")
        if port is not None and not self._keys and not self._unsigned:
            raise options.wrong("key_file or key_env", "is needed to receive; or say unsigned = true")
        self._listener = None if port is None else self._listening(port)
        self._client: aiohttp.ClientSession | None = None

    def _listening(self, port: int) -> Listener:
        app = web.Application()
        app.router.add_post(self.options.text("path"), self._asked)
        limit, head_s = self.options.whole("connections_max"), self.options.seconds("head_s")
        return Listener(app, self.options.text("host"), port, limit, head_s)

    @property
    def port(self) -> int | None:
        """The port on which it listens."""
        return None if self._listener is None else self._listener.port

    async def open(self) -> None:
        """There is no connection to wait for: it is up at once."""
        # Where a repeated request is not known as one, no old connection is used: it may be closed while we write.
        connector = self._guard.connector(limit=1_000, force_close=not self.idempotent)
        timeout_s = self.options.seconds("timeout_s")
        self._client = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s / 2, CONNECT_S)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        if self._listener is not None:
            try:
                await self._listener.start()
            except ConfigError as error:
                raise self.options.wrong("port", f"cannot be used: {error}") from error
            log.info("%r listens on port %d", self, self._listener.port)
        self.came_up("http")

    async def shut(self) -> None:
        """Close sockets."""
        if self._listener is not None:
            await self._listener.close()
        if self._client is not None:
            await self._client.close()

    # Out.

    def connection(self) -> Webhook | None:
        """Itself: each request makes its own connection."""
        return self if self.is_up else None

    async def send(self, sending: Sending) -> Sent:
        """One request."""
        client = self._client
        assert client is not None
        url = self._target(sending.outbound.to)
        data = json.dumps({"type": "message", **outbound_as_json(sending)}).encode()
        id = "msg_" + hashlib.sha256(sending.key.encode()).hexdigest()[:32]
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "posthouse", ID: id}
        if self._keys:
            headers |= signed(self._keys, id, int(time.time()), data)
        try:
            async with client.post(url, data=data, headers=headers, allow_redirects=False) as answer:
                if 200 <= answer.status < 300:
                    return Sent(_answered_id(await _start_of(answer)))
                raise _failed(answer.status, answer.headers)
        except aiohttp.InvalidURL:
            raise Permanent("the target is no URL") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            # Nothing was written: there was no connection.
            if is_refusal(error):
                raise Permanent(self.scrub(getattr(error, "os_error", error))) from None
            raise Transient(f"cannot connect: {self.scrub(getattr(error, 'os_error', error))}") from None
        except TimeoutError:
            raise Unclear("no answer came in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unclear(f"the connection ended before the answer came: {type(error).__name__}") from None

    def _target(self, to: str) -> str:
        if self._url is not None:
            return self._url
        try:
            return self._guard.check_url(to)
        except InvalidInput as error:
            raise Permanent(str(error)) from None

    # In.

    async def _asked(self, request: web.Request) -> web.Response:
        try:
            data = await body(request, self.options.whole("body_bytes_max"), self.options.seconds("body_s"))
            id = request.headers.get(ID, "")
            if self._keys:
                id = verified(self._keys, request.headers, data, time.time())
            receipt = await self.receive(inbound_from(self, strict.loads(data), id))
        except BadSignature as error:
            return _problem(401, error)
        except TooLarge as error:
            return _problem(413, error, close=True)
        except TooSlow as error:
            return _problem(408, error, close=True)
        except InvalidInput as error:
            return _problem(400, error)
        except NotAccepted as error:
            if error.reason in PASSING or error.reason == "closed":
                return _problem(503, error, headers={"Retry-After": "5"})
            return _problem(413 if error.reason == "oversize" else 422, error)
        except StoreError as error:
            return _problem(503, error, headers={"Retry-After": "5"})
        return web.json_response({"id": receipt.id, "duplicate": receipt.duplicate}, status=202)


async def _start_of(answer: aiohttp.ClientResponse) -> bytes:
    """The beginning of an answer's body: enough for its id."""
    try:
        return await answer.content.read(ANSWER_BYTES_MAX)
    except (aiohttp.ClientError, OSError, TimeoutError):
        # The status has come, and that is what counts.
        return b""


def _answered_id(data: bytes) -> str:
    """The id that the receiver gave it, if its answer says one."""
    try:
        value = strict.loads(data)
    except InvalidInput:
        return ""
    found = value.get("id") if isinstance(value, dict) else None
    return found[:200] if isinstance(found, str) else ""


def _failed(status: int, headers: Mapping[str, str]) -> SendError:
    """What an answer that is no success means."""
    told = f"the target answered {status}"
    after_s = retry_after_s(headers.get("Retry-After"), time.time())
    if status == 429 or (status == 503 and after_s is not None):
        return RateLimited(RETRY_AFTER_S if after_s is None else after_s, told)
    if 300 <= status < 400:
        return Permanent(f"{told}: redirects are not followed")
    if status in (502, 504):
        # Somebody in between says it, who does not know what became of the request.
        return Unclear(told)
    if status in (408, 425) or status >= 500:
        return Transient(told)
    return Permanent(told)


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """The header Retry-After: seconds, or a date."""
    if not value:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return min(float(value.strip()[:12]), RETRY_AFTER_CAP_S)
    try:
        at_s = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(at_s - now_s, 0.0), RETRY_AFTER_CAP_S)


def _problem(
    status: int, error: Exception, headers: Mapping[str, str] | None = None, *, close: bool = False
) -> web.Response:
    """An answer that says what is wrong (RFC 9457)."""
    code = getattr(error, "reason", None) or getattr(error, "code", "error")
    value = {"title": str(error), "status": status, "code": code}
    answer = web.json_response(value, status=status, headers=headers, content_type="application/problem+json")
    if close:
        answer.force_close()
    return answer
