"""Operations on the tokens of the gateway's HTTP API: who may do what, making and revoking them.

In: names and scopes. Out: records on the shelf ``gateway.tokens``, under the SHA-256 of the token: the token itself is
told once, when it is made, and kept nowhere. The gateway of this process is told of changes by the engine
(``on_call``), so that a revoked token is refused at once.

A record is JSON: {"name", "scopes", "tenant", "made_at", "by", "role"}; ``tenant`` null is every tenant, ``role`` null
none in the console.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import InvalidInput, StoreCorrupt
from ..mailbox.command import Keep
from ..mailbox.message import Instant, check_name
from ..mailbox.store import Store
from . import view
from .operation import Answer, Context, Json, Refused, operation

SHELF = "gateway.tokens"
PREFIX = "ph_"
SCOPES = ("inbound", "outbound", "status", "events")
"""What a token may allow: to post inbound, to post outbound, to ask what became of messages, to follow events."""
ROLES = ("viewer", "operator", "admin")
"""What a token may be in the console and its API, each with all that the one before it may."""
TOKENS_MAX = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Token(NamedTuple):
    """What is known of one token."""

    name: str
    scopes: tuple[str, ...]
    tenant: str | None
    """None: messages of every tenant."""
    made_at: Instant
    by: str
    role: str | None = None
    """In the console; None: it is no key to it."""

    def encode(self) -> bytes:
        """As it is kept."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def decode(value: bytes) -> Token:
    """A kept record; StoreCorrupt if it is none."""
    try:
        fields = json.loads(value)
        token = Token(**{**fields, "scopes": tuple(fields["scopes"])})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"shelf {SHELF} keeps what is no record of a token") from error
    return token


def digest(token: str) -> str:
    """What a token is known by."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def each(store: Store) -> Iterator[tuple[str, Token]]:
    """Every token that is kept, under its digest."""
    after = ""
    while page := store.kept(SHELF, after):
        for key, value in page:
            yield key, decode(value)
        after = page[-1][0]


def _shown(token: Token) -> Json:
    return {
        "name": token.name,
        "scopes": list(token.scopes),
        "tenant": token.tenant,
        "made_at": view.instant(token.made_at),
        "by": token.by,
        "role": token.role,
    }


@operation("token.add")
def add(
    context: Context,
    *,
    called: str,
    scopes: list[str] | None = None,
    tenant: str | None = None,
    role: str | None = None,
) -> Answer:
    """Make a token; the answer is the only place that ever has it."""
    if not _NAME.fullmatch(called):
        raise InvalidInput(f"a token's name is lower-case letters, digits, . - and _: {called[:80]!r}")
    scopes = scopes or []
    wrong = [scope for scope in scopes if scope not in SCOPES]
    if role is not None and role not in ROLES:
        raise InvalidInput(f"a role is one of {', '.join(ROLES)}, not {role[:40]!r}")
    if role is not None and tenant is not None:
        raise InvalidInput("a token with a role sees every tenant: give either a role or a tenant")
    if not scopes and role is None:
        raise InvalidInput("give the token a scope, for the gateway's API, or a role, for the console")
    if wrong:
        raise InvalidInput(f"scopes are some of {', '.join(SCOPES)}, not {wrong[0][:40]!r}")
    if tenant is not None:
        check_name("tenant", tenant)
    known = [token for _, token in each(context.store)]
    if any(token.name == called for token in known):
        return Refused("exists", f"there is a token {called!r} already; revoke it first, or choose another name")
    if len(known) >= TOKENS_MAX:
        return Refused("full", f"there are {TOKENS_MAX} tokens, and no more are kept")
    secret = PREFIX + secrets.token_urlsafe(32)
    made = Token(called, tuple(s for s in SCOPES if s in scopes), tenant, context.access.now(), context.by, role)
    context.apply(Keep(SHELF, digest(secret), made.encode()))
    return {**_shown(made), "token": secret}


@operation("token.ls")
def ls(context: Context) -> Answer:
    """Every token, without the secret."""
    return {"tokens": sorted((_shown(token) for _, token in each(context.store)), key=lambda row: str(row["name"]))}


@operation("token.revoke")
def revoke(context: Context, *, called: str) -> Answer:
    """Refuse a token from now on."""
    for key, token in each(context.store):
        if token.name == called:
            context.apply(Keep(SHELF, key, None))
            return _shown(token)
    return Refused("not_found", f"there is no token {called[:80]!r}; `posthouse token ls` lists them")
