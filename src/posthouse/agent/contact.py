"""Contacts: who may write to whom, as one agent sees it.

    (none) ── we ask ──→ asked ── they accept ──→ accepted ── they end it ──→ ended
                           └──── they refuse ──→ refused
    (none) ── they ask ─→ asks ── we accept ───→ accepted
                           └──── we reject ────→ rejected      (silently: they are not told)
    any ───── we block ─→ blocked ── we unblock ─→ what it was before

In: what happened. Out: the contact as it is then. It stores nothing and sends nothing.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import orjson

from ..errors import InvalidInput

SHELF = "agent.contacts"
GREETING_CHARACTERS_MAX = 280
NAME_CHARACTERS_MAX = 64


class Standing(enum.StrEnum):
    """How things are between us and a contact."""

    ASKED = "asked"
    ASKS = "asks"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    REFUSED = "refused"
    ENDED = "ended"
    BLOCKED = "blocked"
    NONE = "none"


class Contact(NamedTuple):
    """One other agent."""

    address: str
    standing: Standing
    name: str = ""
    """What we call him; '' where we gave no name."""
    greeting: str = ""
    """What he, or we, wrote when asking."""
    since_ms: int = 0
    before: Standing = Standing.NONE
    """What it was before we blocked him."""

    def as_bytes(self) -> bytes:
        """As it is kept on the shelf."""
        return orjson.dumps(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: str(v) if isinstance(v, enum.StrEnum) else v for name, v in self._asdict().items()}


def contact_from(data: bytes) -> Contact:
    """What ``as_bytes`` wrote."""
    plain = orjson.loads(data)
    return Contact(**{**plain, "standing": Standing(plain["standing"]), "before": Standing(plain["before"])})


def check_greeting(text: str) -> str:
    """The words of a request; InvalidInput if there are too many."""
    if len(text) > GREETING_CHARACTERS_MAX:
        raise InvalidInput(f"a greeting has at most {GREETING_CHARACTERS_MAX} characters, not {len(text)}")
    return text


def check_contact_name(name: str) -> str:
    """A name that we may give; InvalidInput if it could be taken for an address, or does not print."""
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or ":" in name or "@" in name:
        raise InvalidInput(f"a contact's name is 1 to {NAME_CHARACTERS_MAX} characters without : and @: {name[:80]!r}")
    return name
