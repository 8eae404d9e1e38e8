"""The OpenAPI document of the console's API, made from the table of acts.

``python -m posthouse.console.openapi`` prints it as YAML; protocol/console.openapi.yaml is that, and a test holds it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ..control.operation import Json
from ..gateway.api.openapi import VERSION, yaml_page
from ..gateway.api.problem import answers, schema
from .acts import ACTS, API, Act
from .field import Field
from .problem import KINDS

_OBJECT: Json = {"type": "object"}
_TEXT: Json = {"type": "string"}
_ALWAYS = ("invalid", "unauthorized", "forbidden", "misdirected", "rate_limited", "internal", "busy", "unavailable")
_ASKED = (*_ALWAYS, "not_found", "refused")
_POSTED = (*_ASKED, "cross_site", "too_slow", "too_large", "unsupported_media_type")
JOB: Json = {
    "type": "object",
    "required": ["job", "act", "by", "state", "done", "total", "doing", "result", "error"],
    "properties": {
        "job": {"type": "string", "description": "The job's id."},
        "act": _TEXT,
        "by": _TEXT,
        "state": {"type": "string", "enum": ["running", "done", "refused", "stopped", "failed"]},
        "done": {"type": "integer"},
        "total": {"type": ["integer", "null"]},
        "doing": _TEXT,
        "result": {"type": "object", "description": "The answer, once it is done."},
        "error": {"type": ["string", "null"]},
    },
}
_problems = functools.partial(answers, KINDS)


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _parameters(fields: tuple[Field, ...], place: str = "query") -> list[Json]:
    return [
        {"name": f.name, "in": place, "required": f.needed, "description": f.about, "schema": f.schema} for f in fields
    ]


def _operation(act: Act) -> Json:
    answer = {**_OBJECT, "required": list(act.keys)} if act.keys else _OBJECT
    plain: Json = {
        "operationId": act.name.replace(".", "_"),
        "summary": act.about,
        "description": f"For the role {act.role.word} and above."
        + (" Who did it is kept in the audit log." if act.changes else ""),
        "security": [{"token": []}],
    }
    if not act.changes:
        return {
            **plain,
            "parameters": _parameters(act.fields),
            "responses": {"200": _json("The answer", answer), **_problems(*_ASKED)},
        }
    needed = [field.name for field in act.fields if field.needed]
    properties = {field.name: {**field.schema, "description": field.about} for field in act.fields}
    body = {**_OBJECT, "additionalProperties": False, "properties": properties, **act.rules}
    done = {"202": _json("It has begun", {"$ref": "#/components/schemas/Job"})}
    return {
        **plain,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {**body, "required": needed} if needed else body}},
        },
        "responses": {**(done if act.long else {"200": _json("It is done", answer)}), **_problems(*_POSTED)},
    }


def _plain(operation: str, summary: str, responses: Json, **more: Any) -> Json:
    return {"operationId": operation, "summary": summary, "security": [{"token": []}], **more, "responses": responses}


_JOB_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The job's id.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9_-]+$"},
}
_WINDOW = {
    "name": "window",
    "in": "query",
    "required": False,
    "description": "Which one.",
    "schema": {"type": "string", "enum": ["hour", "day", "week"], "default": "hour"},
}


@functools.cache
def document() -> Json:
    """The whole document."""
    paths: Json = {act.path: {"post" if act.changes else "get": _operation(act)} for act in ACTS}
    job = {"$ref": "#/components/schemas/Job"}
    paths[f"{API}/overview"] = {
        "get": _plain(
            "overview",
            "How everything stands at this moment.",
            {"200": _json("Numbers", _OBJECT), **_problems(*_ALWAYS)},
        )
    }
    paths[f"{API}/history"] = {
        "get": _plain(
            "history",
            "How it stood over the last hour, day or week.",
            {"200": _json("A row for each slot", _OBJECT), **_problems(*_ALWAYS)},
            parameters=[_WINDOW],
        )
    }
    paths[f"{API}/live"] = {
        "get": _plain(
            "live",
            "The overview once a second, as server-sent events without an end.",
            {
                "200": {
                    "description": "The stream",
                    "content": {"text/event-stream": {"schema": {"type": "string"}}},
                },
                **_problems(*_ALWAYS),
            },
        )
    }
    paths[f"{API}/settings"] = {
        "get": _plain(
            "settings",
            "Every setting, its value and where it came from; secrets are hidden.",
            {"200": _json("The settings", _OBJECT), **_problems(*_ALWAYS)},
        )
    }
    paths[f"{API}/jobs/{{id}}"] = {
        "get": _plain(
            "job", "How far a job is.", {"200": _json("The job", job), **_problems(*_ASKED)}, parameters=[_JOB_ID]
        )
    }
    paths[f"{API}/jobs/{{id}}/stop"] = {
        "post": _plain(
            "stop_job",
            "Stop a job at its next step; what it did so far stays done.",
            {"202": _json("It will stop", job), **_problems(*_ASKED, "cross_site")},
            parameters=[_JOB_ID],
        )
    }
    paths[f"{API}/openapi.json"] = {
        "get": {
            "operationId": "document",
            "summary": "This document",
            "security": [],
            "responses": {"200": _json("The document", _OBJECT), **_problems("misdirected")},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Posthouse console",
            "version": VERSION,
            "description": "What the console's pages do, for programs. Every request but that for this document "
            "carries a token with a role (`posthouse token add NAME --role ROLE`). Errors are problem details "
            "(RFC 9457) whose `code` is stable.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token with a role: viewer, operator or admin.",
                }
            },
            "schemas": {"Job": JOB, "Problem": schema(KINDS)},
        },
    }


def page() -> str:
    """The document as YAML."""
    return yaml_page(document(), "posthouse.console.openapi")


if __name__ == "__main__":
    sys.stdout.write(page())
