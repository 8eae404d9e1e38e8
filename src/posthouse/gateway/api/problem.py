"""Problems: every error of the HTTP API, as RFC 9457 says (``application/problem+json``).

In: a code from the table. Out: a response whose body says what is wrong and what to do. ``code`` is stable, and
``type`` is that code as a URN; titles and details are for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiohttp import web

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:posthouse:problem:"


class Kind(NamedTuple):
    """One row of the table."""

    status: int
    title: str


KINDS: Mapping[str, Kind] = {
    "invalid": Kind(400, "The request is not what it should be"),
    "unauthorized": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "The token does not allow this"),
    "not_found": Kind(404, "There is nothing of that name"),
    "method_not_allowed": Kind(405, "This cannot be done here"),
    "too_slow": Kind(408, "The request did not come in time"),
    "conflict": Kind(409, "Another message has that id"),
    "ambiguous": Kind(409, "Several messages have that id"),
    "too_large": Kind(413, "The request is too large"),
    "unsupported_media_type": Kind(415, "The body is not JSON"),
    "oversize": Kind(422, "The message is larger than its desk takes"),
    "expired": Kind(422, "The message's time has passed already"),
    "full": Kind(429, "The queue is full"),
    "busy": Kind(429, "Too many wait already"),
    "internal": Kind(500, "Something went wrong here"),
    "unavailable": Kind(503, "The store cannot be reached"),
}


class Problem(Exception):
    """Ends a request with an answer that says what is wrong."""

    kinds = KINDS

    def __init__(self, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The body."""
        status, title = self.kinds[self.code]
        return {
            "type": TYPE + self.code,
            "title": title,
            "status": status,
            "detail": self.detail,
            "code": self.code,
        }

    def response(self) -> web.Response:
        """The answer."""
        return web.Response(
            status=self.kinds[self.code].status,
            body=json.dumps(self.document()).encode(),
            content_type=MEDIA_TYPE,
            headers=self.headers,
        )


def schema(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """What a problem looks like, for the document of an API with these kinds."""
    text = {"type": "string"}
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "code": {"type": "string", "enum": list(kinds)},
        },
    }


def answers(kinds: Mapping[str, Kind], *codes: str) -> dict[str, Any]:
    """The answers for these problems in such a document, by status."""
    found: dict[str, list[str]] = {}
    for code in codes:
        found.setdefault(str(kinds[code].status), []).append(code)
    return {
        status: {
            "description": "; ".join(f"{kinds[code].title} (`{code}`)" for code in listed),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, listed in sorted(found.items())
    }
