"""HTTP as far as the relay speaks it: one request a connection, bounded in size, answered and closed.

In: bytes of a request. Out: a ``Request``, or the ``Answer`` to what cannot be one; and answers as bytes.
It opens no socket and knows no route.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any, NamedTuple

HEAD_BYTES_MAX = 8_192
HEADERS_MAX = 100
BODY_BYTES_MAX = 4_096

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"/[!-~]*")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class Answer(NamedTuple):
    """What is sent back; the connection ends behind it."""

    status: int
    body: bytes = b""
    kind: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    def render(self, head_only: bool = False) -> bytes:
        """The bytes on the wire."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            *(f"{name}: {value}" for name, value in self.headers),
            "Connection: close",
            "\r\n",
        ]
        return "\r\n".join(lines).encode("latin-1") + (b"" if head_only else self.body)


def as_json(status: int, document: Any, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """An answer for programs."""
    return Answer(status, json.dumps(document).encode() + b"\n", JSON, headers)


def wrong(status: int, reason: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """A refusal with its reason, for programs and people."""
    return as_json(status, {"error": reason}, headers)


class Request(NamedTuple):
    """The head of a request. Names of headers are lower case; of one that is repeated, all values with commas."""

    method: str
    path: str
    """Without the query, which nothing here reads."""
    headers: dict[str, str]
    body_bytes: int
    """How long the body is that follows."""

    @property
    def is_upgrade(self) -> bool:
        """Whether it asks for a WebSocket."""
        words = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        return "upgrade" in words and self.headers.get("upgrade", "").strip().lower() == "websocket"


def parse_head(head: bytes) -> Request | Answer:
    """The request whose head (without the empty line at its end) this is, or why it is none."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not _TOKEN.fullmatch(words[0]):
        return wrong(400, "no HTTP/1.1 request")
    if not _TARGET.fullmatch(words[1]):
        return wrong(400, "no path")
    if len(lines) - 1 > HEADERS_MAX:
        return wrong(431, f"more than {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        # Folded lines and names with spaces are how requests are smuggled past proxies.
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            return wrong(400, "a malformed header")
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if "transfer-encoding" in headers:
        return wrong(411, "a body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,18}", length):
        return wrong(400, "a malformed Content-Length")
    if int(length) > BODY_BYTES_MAX:
        return wrong(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    return Request(words[0], words[1].partition("?")[0], headers, int(length))
