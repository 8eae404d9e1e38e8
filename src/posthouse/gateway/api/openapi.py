"""The OpenAPI document of the HTTP API, made from the tables that the API itself goes by.

python -m posthouse.gateway.api.openapi > protocol/gateway.openapi.yaml
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from ...control.token import SCOPES
from ...mailbox.message import State
from ..letter import Json
from . import problem, shape

VERSION = "1.0.0"
_INSTANT: Json = {"type": "string", "format": "date-time"}


def _or_null(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


_TEXT: Json = {"type": "string"}
_STATE: Json = {"type": "string", "enum": [str(state) for state in State]}
_STATUS: Json = {"type": "string", "enum": ["pending", "processing", "completed", "failed"]}
POSTED: Json = {
    "type": "object",
    "required": ["desk", "id", "outcome", "state", "status", "expires_at"],
    "properties": {
        "desk": _TEXT,
        "id": _TEXT,
        "outcome": {"type": "string", "enum": ["posted", "duplicate"]},
        "state": _STATE,
        "status": _STATUS,
        "expires_at": _or_null(_INSTANT),
    },
}
_COMMON: Json = {
    "desk": {"type": "string", "enum": ["inbound", "outbound"]},
    "id": _TEXT,
    "state": _STATE,
    "status": _STATUS,
    "channel": _TEXT,
    "account": _TEXT,
    "tenant": _or_null(_TEXT),
    "session": _or_null(_TEXT),
    "attempts": {"type": "integer", "minimum": 0},
    "posted_at": _INSTANT,
    "due_at": _or_null(_INSTANT),
    "expires_at": _or_null(_INSTANT),
    "finished_at": _or_null(_INSTANT),
    "reason": _or_null(_TEXT),
    "error": _or_null(_TEXT),
    "batch": _or_null(_TEXT),
}
_ALWAYS = ["desk", "id", "state", "status", "attempts", "posted_at", "finished_at", "reason", "error"]
OUTBOUND_STATUS: Json = {
    "type": "object",
    "required": [*_ALWAYS, "parts_sent", "origin", "cause"],
    "properties": {
        **_COMMON,
        "to": _TEXT,
        "parts": {"type": "array", "items": {"type": "object"}},
        "thread": _or_null(_TEXT),
        "reply_to": _or_null(_TEXT),
        "parts_sent": {"type": "integer", "minimum": 0},
        "origin": _TEXT,
        "cause": _or_null(_TEXT),
    },
}
INBOUND_STATUS: Json = {
    "type": "object",
    "required": [*_ALWAYS, "replies"],
    "properties": {
        **_COMMON,
        "conversation": _TEXT,
        "replies": {
            "type": "array",
            "description": "What was posted in answer to it, in order.",
            "items": {"$ref": "#/components/schemas/OutboundStatus"},
        },
    },
}
_problems = functools.partial(problem.answers, problem.KINDS)


def _json(description: str, name: str) -> Json:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_ASKED = ("invalid", "unauthorized", "forbidden", "internal", "unavailable")
_POST = (*_ASKED, "too_slow", "conflict", "too_large", "unsupported_media_type", "oversize", "expired", "full")
_GET = (*_ASKED, "not_found", "ambiguous", "busy")


def _posting(desk: str, schema: str, about: str) -> Json:
    return {
        "operationId": f"post_{desk}",
        "summary": about,
        "description": "Answered when the message is durable. A repeat with the same id changes nothing and is "
        "answered with what became of the first; one with another content is a conflict.",
        "security": [{"token": [desk]}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
        },
        "responses": {
            "200": _json("It is known already", "Posted"),
            "201": _json("It is durable", "Posted"),
            **_problems(*_POST),
        },
    }


def _parameters(fields: tuple[shape.Field, ...]) -> list[Json]:
    return [
        {"name": field.name, "in": "query", "required": False, "description": field.about, "schema": field.schema}
        for field in fields
    ]


def _asking(desk: str, schema: str, fields: tuple[shape.Field, ...]) -> Json:
    id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The message's id.",
        "schema": {**shape.INBOUND[0].schema},
    }
    return {
        "operationId": f"get_{desk}",
        "summary": f"What became of an {desk} message",
        "description": "With wait_s it is answered as soon as the message is finished or set aside, and with its "
        "state at that time otherwise. Where several messages have the id, the parameters say which is meant.",
        "security": [{"token": ["status"]}],
        "parameters": [id, *_parameters((*fields, shape.WAIT))],
        "responses": {"200": _json("Its state", schema), **_problems(*_GET)},
    }


@functools.cache
def document() -> Json:
    """The whole document."""
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "The offset of the last event that was received: the stream goes on behind it.",
        "schema": shape.EVENTS[-1].schema,
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Posthouse gateway",
            "version": VERSION,
            "description": "Messages in and out of chat channels, for programs in any language. Every request but that "
            "for this document carries a token (`posthouse token add`). Errors are problem details (RFC 9457) whose "
            "`code` is stable.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/inbound": {"post": _posting("inbound", "Inbound", "Hand over a message that came from a channel")},
            "/v1/inbound/{id}": {"get": _asking("inbound", "InboundStatus", shape.WHICH_INBOUND)},
            "/v1/outbound": {"post": _posting("outbound", "Outbound", "Have a message sent")},
            "/v1/outbound/{id}": {"get": _asking("outbound", "OutboundStatus", shape.WHICH_OUTBOUND)},
            "/v1/events": {
                "get": {
                    "operationId": "get_events",
                    "summary": "What happens to messages, while it happens",
                    "description": "Server-sent events without an end: the event's name is that of the journal, its id "
                    "the offset there, its data a JSON object. An event `gap` says that some are missing. A token that "
                    "is for one tenant is told of inbound messages only.",
                    "security": [{"token": ["events"]}],
                    "parameters": [*_parameters(shape.EVENTS), last],
                    "responses": {
                        "200": {
                            "description": "The stream",
                            "content": {"text/event-stream": {"schema": {"type": "string"}}},
                        },
                        **_problems(*_ASKED, "busy"),
                    },
                }
            },
            "/v1/openapi.json": {
                "get": {
                    "operationId": "get_document",
                    "summary": "This document",
                    "security": [],
                    "responses": {
                        "200": {
                            "description": "The document",
                            "content": {"application/json": {"schema": {"type": "object"}}},
                        }
                    },
                }
            },
        },
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"A token with the scope that an operation names: {', '.join(SCOPES)}.",
                }
            },
            "schemas": {
                "Inbound": shape.body_schema(shape.INBOUND),
                "Outbound": shape.body_schema(shape.OUTBOUND),
                "Any": shape.ANY,
                "Posted": POSTED,
                "InboundStatus": INBOUND_STATUS,
                "OutboundStatus": OUTBOUND_STATUS,
                "Problem": problem.schema(problem.KINDS),
            },
        },
    }


def page() -> str:
    """The document as YAML."""
    return yaml_page(document(), "posthouse.gateway.api.openapi")


def yaml_page(document: Json, module: str) -> str:
    """A document as YAML, with a word on the module that makes it."""
    head = f"# Made by `python -m {module}`; a test holds this file to the program.\n"
    return head + "\n".join(_lines(document, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    """A value as lines of YAML; texts as JSON writes them, which YAML reads too."""
    pad = "  " * depth
    lines: list[str] = []
    if isinstance(value, dict):
        for name, inner in value.items():
            key = name if name.replace("_", "").isalnum() and not name.isdigit() else json.dumps(name)
            lines += _entry(f"{pad}{key}:", inner, depth + 1)
    else:
        for inner in value:
            nested = _lines(inner, depth + 1) if isinstance(inner, dict | list) and inner else []
            if nested:
                lines += [f"{pad}- {nested[0].lstrip()}", *nested[1:]]
            else:
                lines.append(f"{pad}- {json.dumps(inner, ensure_ascii=False)}")
    return lines


def _entry(head: str, value: Any, depth: int) -> list[str]:
    if not isinstance(value, dict | list) or not value:
        return [f"{head} {json.dumps(value, ensure_ascii=False)}"]
    if isinstance(value, list) and not any(isinstance(inner, dict | list) for inner in value):
        return [f"{head} {json.dumps(value, ensure_ascii=False)}"]
    return [head, *_lines(value, depth)]


if __name__ == "__main__":
    sys.stdout.write(page())
