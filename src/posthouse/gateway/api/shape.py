"""The shapes of the HTTP API: what a request may carry, as a table that reads it and that documents it.

In: JSON objects and query strings from outside. Out: letters and checked parameters, or InvalidInput that names the
field. The OpenAPI document is made from the same tables, so that it cannot say anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import InvalidInput
from ...mailbox.message import INSTANT_MAX, NAME_BYTES_MAX, SECOND, Instant
from ..letter import (
    DEFAULT_ACCOUNT,
    DEFAULT_TENANT,
    MEDIA_MAX,
    PARTS_MAX,
    Inbound,
    Json,
    Outbound,
    Part,
    media_from_json,
    parts_from_json,
)

NAME_CHARACTERS_MAX = 128
"""Of ids, channels, targets and the like, as the API takes them: in bytes they fit wherever they are stored."""
assert NAME_CHARACTERS_MAX * 4 <= NAME_BYTES_MAX
NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
TEXT_CHARACTERS_MAX = 1_000_000
EXPIRES_AFTER_S_MAX = 365 * 86_400.0
WAIT_S_MAX = 60.0
"""How long a request may wait for what becomes of a message."""


class Field(NamedTuple):
    """One field of a request's body, or one of its parameters."""

    name: str
    schema: Json
    about: str
    needed: bool = False


def _name(default: str = "") -> Json:
    schema: Json = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS_MAX, "pattern": NAME_PATTERN}
    return {**schema, "default": default} if default else schema


NUMBER_MAX = 2**63 - 1
ANY: Json = {
    "description": "Any JSON value, whose numbers are no larger than 64 bits hold.",
    "anyOf": [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "string"},
        {"type": "number", "minimum": -NUMBER_MAX, "maximum": NUMBER_MAX},
        {"type": "array", "items": {"$ref": "#/components/schemas/Any"}},
        {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Any"}},
    ],
}
FREE: Json = {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Any"}}
MEDIA: Json = {
    "type": "array",
    "maxItems": MEDIA_MAX,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["url"],
        "properties": {
            "url": {"type": "string", "minLength": 1},
            "type": {"type": "string"},
            "name": {"type": "string"},
        },
    },
}
PARTS: Json = {
    "type": "array",
    "minItems": 1,
    "maxItems": PARTS_MAX,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "text": {"type": "string", "minLength": 1},
            "media": {**MEDIA, "minItems": 1},
            "extra": {**FREE, "minProperties": 1},
        },
        "minProperties": 1,
    },
}
_TEXT: Json = {"type": "string", "maxLength": TEXT_CHARACTERS_MAX}
_SHORT: Json = {"type": "string", "maxLength": NAME_CHARACTERS_MAX}


def _named(name: str, about: str, needed: bool = False, default: str = "") -> Field:
    return Field(name, _name(default), about, needed)


INBOUND: tuple[Field, ...] = (
    _named("id", "The channel's own id of the message. A repeat with the same id changes nothing.", True),
    _named("channel", "The network that it came over, such as whatsapp.", True),
    _named("conversation", "The chat, group or address that it belongs to; an answer goes there.", True),
    Field("from", _SHORT, "Who wrote it."),
    Field("text", _TEXT, "What it says."),
    _named("account", "Which of our accounts received it.", default=DEFAULT_ACCOUNT),
    _named("session", "The lane in which it is worked on; by default channel, account, conversation and thread."),
    Field("thread", _SHORT, "The thread inside of the conversation."),
    Field("reply_to", _SHORT, "The id of the message that it replies to."),
    Field("media", MEDIA, "What is not text, by where it can be fetched."),
    Field("control", {"type": "boolean"}, "Whether it is a command, which does not wait for what may follow."),
    Field("metadata", FREE, "Whatever else the handler should know."),
    _named("tenant", "Whose message it is.", default=DEFAULT_TENANT),
)
OUTBOUND: tuple[Field, ...] = (
    _named("id", "An id of the caller's choosing. A repeat with the same id changes nothing.", True),
    _named("channel", "The network to send it over.", True),
    _named("to", "The chat, group or address to send it to.", True),
    Field("text", {**_TEXT, "minLength": 1}, "What to say; short for one part. Give this or parts."),
    Field("parts", PARTS, "The pieces in which it is sent, in order. Give these or text."),
    _named("account", "Which of our accounts sends it.", default=DEFAULT_ACCOUNT),
    Field("thread", _SHORT, "The thread inside of the conversation."),
    Field("reply_to", _SHORT, "The id of the message that it replies to."),
    _named("cause", "The id of the inbound message that it answers."),
    Field("session", _SHORT, "The session that it belongs to."),
    Field("metadata", FREE, "Whatever else the channel should know."),
    _named("tenant", "Whose message it is.", default=DEFAULT_TENANT),
    Field(
        "expires_after_s",
        {"type": "number", "minimum": 1, "maximum": EXPIRES_AFTER_S_MAX},
        "How long it may wait; what is older is not sent. By default the desk's own ttl_s.",
    ),
)


def body_schema(fields: tuple[Field, ...]) -> Json:
    """A request's body as JSON Schema."""
    schema: Json = {
        "type": "object",
        "additionalProperties": False,
        "required": [field.name for field in fields if field.needed],
        "properties": {field.name: {**field.schema, "description": field.about} for field in fields},
    }
    if fields is OUTBOUND:
        schema["oneOf"] = [{"required": ["text"]}, {"required": ["parts"]}]
    return schema


def inbound(value: Any) -> Inbound:
    """The message in a request's body."""
    found = _checked(value, INBOUND)
    return Inbound(
        id=found["id"],
        channel=found["channel"],
        conversation=found["conversation"],
        sender=found.get("from", ""),
        text=found.get("text", ""),
        account=found.get("account", DEFAULT_ACCOUNT),
        session=found.get("session", ""),
        thread=found.get("thread", ""),
        reply_to=found.get("reply_to", ""),
        media=media_from_json(found.get("media", [])),
        control=found.get("control", False),
        metadata=found.get("metadata", {}),
        tenant=found.get("tenant", DEFAULT_TENANT),
    )


def outbound(value: Any, origin: str, now: Instant) -> Outbound:
    """The message in a request's body, asked for by ``origin``."""
    found = _checked(value, OUTBOUND)
    if ("text" in found) == ("parts" in found):
        raise InvalidInput("give either text or parts")
    after_s = found.get("expires_after_s")
    return Outbound(
        id=found["id"],
        channel=found["channel"],
        to=found["to"],
        parts=parts_from_json(found["parts"]) if "parts" in found else (Part(found["text"]),),
        account=found.get("account", DEFAULT_ACCOUNT),
        thread=found.get("thread", ""),
        reply_to=found.get("reply_to", ""),
        origin=origin,
        cause=found.get("cause"),
        session=found.get("session", ""),
        tenant=found.get("tenant", DEFAULT_TENANT),
        metadata=found.get("metadata", {}),
        expires_at=None if after_s is None else min(now + int(after_s * SECOND), INSTANT_MAX),
    )


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "text"),
    "boolean": ((bool,), "true or false"),
    "object": ((dict,), "an object"),
    "array": ((list,), "a list"),
    "number": ((int, float), "a number"),
}


def _checked(value: Any, fields: tuple[Field, ...]) -> Json:
    """The object, if each of its fields is what the table says."""
    if not isinstance(value, dict):
        raise InvalidInput("the body must be a JSON object")
    by_name = {field.name: field for field in fields}
    for name, given in value.items():
        field = by_name.get(name)
        if field is None:
            raise InvalidInput(f"unknown field {name[:60]!r}; known are {', '.join(by_name)}")
        check(name, given, field.schema)
    for field in fields:
        if field.needed and field.name not in value:
            raise InvalidInput(f"{field.name} is needed")
    return value


def check(where: str, value: Any, schema: Json) -> None:
    """Raise InvalidInput unless the value is as the schema says. Only the words that the tables use are known."""
    kinds, called = _TYPES[schema["type"]]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InvalidInput(f"{where} must be {called}")
    if isinstance(value, str):
        _check_text(where, value, schema)
    elif isinstance(value, list):
        _check_size(where, len(value), schema.get("minItems", 0), schema.get("maxItems"), "items")
        for number, item in enumerate(value):
            check(f"{where}[{number}]", item, schema["items"])
    elif isinstance(value, dict):
        _check_object(where, value, schema)
    elif not isinstance(value, bool) and not schema["minimum"] <= value <= schema["maximum"]:
        raise InvalidInput(f"{where} must be between {schema['minimum']:g} and {schema['maximum']:g}")


def _check_text(where: str, value: str, schema: Json) -> None:
    _check_size(where, len(value), schema.get("minLength", 0), schema.get("maxLength"), "characters")
    # The common case first: text that prints needs one look.
    if value.isprintable() or schema.get("pattern") != NAME_PATTERN:
        return
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise InvalidInput(f"{where} holds a control character")


def _check_object(where: str, value: Json, schema: Json) -> None:
    properties = schema.get("properties")
    if properties is None:
        _check_free(where, value)
    else:
        for name, inner in value.items():
            if name not in properties:
                raise InvalidInput(f"{where} has no field {name[:60]!r}; known are {', '.join(properties)}")
            check(f"{where}.{name}", inner, properties[name])
    for name in schema.get("required", ()):
        if name not in value:
            raise InvalidInput(f"{where}.{name} is needed")
    _check_size(where, len(value), schema.get("minProperties", 0), None, "fields")


def _check_free(where: str, value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, int | float) and not -NUMBER_MAX <= one <= NUMBER_MAX:
            raise InvalidInput(f"{where} holds a number beyond 64 bits")


def _check_size(where: str, size: int, least: int, most: int | None, what: str) -> None:
    if size < least or (most is not None and size > most):
        bounds = f"at least {least}" if most is None or size < least else f"at most {most}"
        raise InvalidInput(f"{where} must have {bounds} {what}")


# Parameters of a query


def _parameter(name: str, about: str) -> Field:
    return Field(name, _name(), about)


WHICH_INBOUND = (
    _parameter("channel", "Only a message that came over this channel."),
    _parameter("account", "Only one that this account received."),
    _parameter("conversation", "Only one of this conversation."),
    _parameter("tenant", "Only one of this tenant."),
)
WHICH_OUTBOUND = (
    _parameter("channel", "Only a message that goes over this channel."),
    _parameter("account", "Only one that this account sends."),
    _parameter("origin", "Only one that was asked for by this token, by handler, or by import."),
)
WAIT = Field(
    "wait_s",
    {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX, "default": 0},
    "How long to wait for the message to be finished, in seconds; the answer comes as soon as it is.",
)
EVENTS = (
    Field("desk", {"type": "string", "enum": ["inbound", "outbound"]}, "Only events of this desk."),
    _parameter("id", "Only events of messages with this id."),
    _parameter("lane", "Only events of this session or target."),
    _parameter("mailbox", "Only events of this tenant (inbound) or channel/account (outbound)."),
    Field(
        "after",
        {"type": "integer", "minimum": 0, "maximum": 2**62},
        "Begin behind this offset, as far as the store still has it; by default, with what happens from now on.",
    ),
)


def query(given: Mapping[str, str], known: tuple[Field, ...]) -> Json:
    """The parameters of a query, checked. ``given`` must hold each once."""
    by_name = {field.name: field for field in known}
    found: Json = {}
    for name, text in given.items():
        field = by_name.get(name)
        if field is None:
            raise InvalidInput(f"unknown parameter {name[:60]!r}; known are {', '.join(by_name)}")
        schema = field.schema
        if schema["type"] in ("number", "integer"):
            found[name] = _number(name, text, schema)
        else:
            if "enum" in schema and text not in schema["enum"]:
                raise InvalidInput(f"{name} must be one of {', '.join(schema['enum'])}")
            check(name, text, schema)
            found[name] = text
    return found


def _number(name: str, text: str, schema: Json) -> int | float:
    try:
        number = float(text) if schema["type"] == "number" else int(text)
    except ValueError:
        number = math.nan
    plain = text.isascii() and not text.startswith("+") and "_" not in text and text == text.strip()
    if not plain or not schema["minimum"] <= number <= schema["maximum"]:
        whole = "a number" if schema["type"] == "number" else "a whole number"
        raise InvalidInput(f"{name} must be {whole} between {schema['minimum']} and {schema['maximum']:g}")
    return number
