"""Fields: what an act may be given, read from JSON, from a query or from a form by one table.

In: plain values or texts from outside. Out: parameters, or InvalidInput that names the field. A name that is too long
to exist is nothing that could be found.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from ..control.operation import Json
from ..errors import InvalidInput
from ..gateway.api.shape import NAME_PATTERN, Field, check
from ..mailbox.message import INSTANT_MAX, NAME_BYTES_MAX, Instant
from .problem import Problem

__all__ = ["Field", "boolean", "from_json", "from_text", "instant_of", "integer", "moment", "name", "number", "text"]

NAME: Json = {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": NAME_PATTERN}
LANE_NAME: Json = {"type": "string", "maxLength": NAME_BYTES_MAX, "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}
TEXT_MAX = 1_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FRACTION = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")


def name(called: str, about: str, *, needed: bool = False, empty: bool = False) -> Field:
    """A name of a mailbox, a message and the like."""
    return Field(called, LANE_NAME if empty else NAME, about, needed)


def text(called: str, about: str, *, needed: bool = False, one_of: tuple[str, ...] = ()) -> Field:
    """Some text, or one of a few words."""
    schema: Json = {"type": "string", "enum": list(one_of)} if one_of else {"type": "string", "maxLength": TEXT_MAX}
    return Field(called, schema, about, needed)


def moment(called: str, about: str) -> Field:
    """An instant, as ISO 8601 says it."""
    return Field(called, {"type": "string", "format": "date-time", "maxLength": 64}, about)


def integer(called: str, about: str, least: int, most: int, default: int | None = None) -> Field:
    """A whole number."""
    schema: Json = {"type": "integer", "minimum": least, "maximum": most}
    return Field(called, schema if default is None else {**schema, "default": default}, about)


def number(called: str, about: str, least: float, most: float) -> Field:
    """A number."""
    return Field(called, {"type": "number", "minimum": least, "maximum": most}, about)


def boolean(called: str, about: str) -> Field:
    """Yes or no; no unless it is said."""
    return Field(called, {"type": "boolean", "default": False}, about)


def from_json(value: Any, fields: tuple[Field, ...]) -> Json:
    """The parameters in a JSON body."""
    if not isinstance(value, dict):
        raise InvalidInput("the body must be a JSON object")
    return _complete({name: _plain(name, given, _field(name, fields)) for name, given in value.items()}, fields)


def from_text(given: Mapping[str, str], fields: tuple[Field, ...], *, is_form: bool = False) -> Json:
    """The parameters in a query or a form; what was left empty in a form was not given, unless it may be empty."""
    found: Json = {}
    for name, value in given.items():
        field = _field(name, fields)
        if is_form and value == "" and (field.schema["type"] != "string" or field.schema.get("minLength")):
            continue
        found[name] = _plain(name, _parsed(name, value, field.schema), field)
    return _complete(found, fields)


def _field(name: str, fields: tuple[Field, ...]) -> Field:
    for field in fields:
        if field.name == name:
            return field
    known = ", ".join(field.name for field in fields) or "none"
    raise InvalidInput(f"unknown parameter {name[:60]!r}; known are {known}")


def _complete(found: Json, fields: tuple[Field, ...]) -> Json:
    for field in fields:
        if field.needed and field.name not in found:
            raise InvalidInput(f"{field.name} is needed")
    return found


def _parsed(name: str, value: str, schema: Json) -> Any:
    """A text as the kind of value that the schema wants."""
    kind = schema["type"]
    if kind == "integer" and _WHOLE.fullmatch(value):
        return int(value)
    if kind == "number" and _FRACTION.fullmatch(value):
        return float(value)
    if kind == "boolean" and value in ("true", "false"):
        return value == "true"
    if kind == "array":
        return value.split(",")
    if kind == "string":
        return value
    raise InvalidInput(f"{name} must be {'true or false' if kind == 'boolean' else 'a ' + kind}: {value[:40]!r}")


def _plain(name: str, value: Any, field: Field) -> Any:
    """The value, if it is as the schema says."""
    schema = field.schema
    kind = schema["type"]
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int | float) or (kind == "integer" and value != int(value)):
            raise InvalidInput(f"{name} must be a {'whole ' if kind == 'integer' else ''}number")
        low, high = schema["minimum"], schema["maximum"]
        if not low <= value <= high:
            raise InvalidInput(f"{name} must be between {low} and {high}")
        return int(value) if kind == "integer" else value
    check(name, value, schema)
    if kind == "array":
        if wrong := [item for item in value if item not in schema["items"]["enum"]]:
            raise InvalidInput(f"{name} are some of {', '.join(schema['items']['enum'])}, not {wrong[0][:40]!r}")
        return value
    if kind == "string":
        if "enum" in schema and value not in schema["enum"]:
            raise InvalidInput(f"{name} must be one of {', '.join(schema['enum'])}")
        if schema in (NAME, LANE_NAME):
            if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
                raise InvalidInput(f"{name} holds a control character")
            if len(value.encode(errors="replace")) > NAME_BYTES_MAX:
                raise Problem("not_found", f"{name} is longer than any that there is")
    return value


def instant_of(called: str, value: str) -> Instant:
    """An instant from ISO 8601 text; without a zone it is UTC."""
    try:
        found = datetime.datetime.fromisoformat(value)
        if found.tzinfo is None:
            found = found.replace(tzinfo=datetime.UTC)
        at = (found - _EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{called} must be a time such as 2026-01-31T12:00:00Z: {value[:40]!r}") from None
    return min(max(at, 0), INSTANT_MAX)
