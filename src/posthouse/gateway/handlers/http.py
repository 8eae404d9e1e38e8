"""A handler behind an HTTP endpoint: the work is POSTed to it, and its answer is the answer.

In: a URL, and a key to sign with. Out: a request for each attempt, signed as Standard Webhooks say, with the work's key
as ``webhook-id`` (the same for every attempt); and replies from its answer.

    200 and JSON                       the answer (see ``answer.replies_from_json``); an empty body is: done, no reply
    200 and application/x-ndjson       lines; a line {"progress": …} says that the work goes on, the last is the answer
    429, or 503 with Retry-After       later, when it says; the attempt counts
    408, 425, 5xx                      later, by the ladder
    any other status                   rejected
    no connection                      nobody is there: the attempt does not count

Every byte that comes begins the handler's time anew. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections.abc import Callable, Sequence

import aiohttp
import orjson

from ..answer import DELAY_S_MAX, Away, Reject, RetryLater, Work, replies_from_json
from ..letter import Reply, encode
from ..signature import Key, signed

ANSWER_BYTES_MAX = 8 * 1024 * 1024
LINES = "application/x-ndjson"


class HttpHandler:
    """POSTs to one URL. It connects anew when the connection it had is gone."""

    def __init__(self, url: str, keys: Sequence[Key] = (), *, now_s: Callable[[], float] = time.time) -> None:
        self._url = url
        self._keys = tuple(keys)
        self._now_s = now_s
        self._client: aiohttp.ClientSession | None = None

    async def handle(self, work: Work) -> tuple[Reply, ...]:
        """Ask, and read the answer as it comes."""
        body = encode(work.as_json())
        headers = {"content-type": "application/json", "accept": f"application/json, {LINES}"}
        if self._keys:
            headers |= signed(self._keys, work.key, int(self._now_s()), body)
        else:
            headers["webhook-id"] = work.key
        try:
            async with self._session().post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                self._check(response)
                if response.content_type == LINES:
                    return replies_from_json(await _last_line(response, work))
                return replies_from_json(_document(await _whole(response, work)))
        except aiohttp.ClientConnectorError as error:
            raise Away(f"the handler cannot be reached: {error.os_error.strerror or error}") from error
        except aiohttp.ClientError as error:
            raise RetryLater(why=f"the handler broke off: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            # The worker limits the time; here only that of connecting is limited.
            timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=10)
            self._client = aiohttp.ClientSession(
                timeout=timeout, connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._client

    def _check(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        after_s = retry_after_s(response.headers.get("retry-after"), self._now_s())
        why = f"the handler answered {status} {response.reason or ''}".rstrip()
        if status == 429 or (status == 503 and after_s is not None):
            raise RetryLater(after_s, why, rate_limited=True)
        if status in (408, 425) or status >= 500:
            raise RetryLater(None, why)
        raise Reject(why)


def retry_after_s(text: str | None, now_s: float) -> float | None:
    """The seconds of a Retry-After header, which may be a date; None if it says nothing useful."""
    if not text:
        return None
    if text.strip().isdecimal():
        return min(float(text.strip()), DELAY_S_MAX)
    with contextlib.suppress(ValueError, TypeError):
        return min(max(email.utils.parsedate_to_datetime(text).timestamp() - now_s, 0.0), DELAY_S_MAX)
    return None


async def _whole(response: aiohttp.ClientResponse, work: Work) -> bytes:
    found = bytearray()
    async for data in response.content.iter_any():
        work.progress()
        found += data
        _check_size(len(found))
    return bytes(found)


async def _last_line(response: aiohttp.ClientResponse, work: Work) -> object:
    """The line that is no progress."""
    rest, size = bytearray(), 0
    answer: object = None
    async for data in response.content.iter_any():
        work.progress()
        rest += data
        size += len(data)
        _check_size(size)
        while (end := rest.find(b"\n")) >= 0:
            line, rest = bytes(rest[:end]), rest[end + 1 :]
            answer = _later(answer, line)
    return _later(answer, bytes(rest))


def _later(answer: object, line: bytes) -> object:
    if not line.strip():
        return answer
    document = _document(line)
    return answer if isinstance(document, dict) and "progress" in document else document


def _document(data: bytes) -> object:
    if not data.strip():
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Reject(f"the handler's answer is no JSON: {error}") from error


def _check_size(size: int) -> None:
    if size > ANSWER_BYTES_MAX:
        raise Reject(f"the handler's answer is larger than {ANSWER_BYTES_MAX} bytes")
