"""Access: who is there. Tokens with a role, the one-time token of the start-up summary, and sessions of browsers.

In: a token, once, or the cookie of a session. Out: a visitor with a role, or nobody. Tokens and cookies are known by
their hashes. A session lasts a bounded time, ends with the process, and ends at once when its token is revoked; how
often an address may be wrong is limited.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import NamedTuple

from ..control.token import PREFIX, digest
from ..engine.engine import Engine
from ..gateway.api import access
from .role import Role, role_of

SESSIONS_MAX = 1_000
ADDRESSES_MAX = 10_000
"""Addresses whose mistakes are remembered; with more, the oldest are forgotten."""
ONCE_S = 86_400.0
"""How long the one-time token waits to be used."""
ONCE_NAME = "start-up"
MINUTE_S = 60.0


class Visitor(NamedTuple):
    """Somebody who may be here."""

    name: str
    role: Role
    csrf: str
    """What his forms must carry; '' where a token comes with each request, which no other site can make."""
    notices: list[tuple[str, str]]
    """Told on his next page: good, warn or bad, and a sentence."""

    @property
    def by(self) -> str:
        """Who he is in the journal and in the audit log."""
        return f"{'console' if self.csrf else 'api'}:{self.name}"


class _Session(NamedTuple):
    name: str
    role: Role
    csrf: str
    token: str | None
    """The digest of the token that began it; None: the one-time token."""
    ends_at: float
    notices: list[tuple[str, str]]


class Tries:
    """Counts mistakes of each address, a minute at a time."""

    def __init__(self, per_min: int) -> None:
        self._per_min = per_min
        self._wrong: dict[str, tuple[float, int]] = {}

    def wait_s(self, address: str, now: float) -> float:
        """How long this address must wait; 0 if it may try."""
        since, count = self._wrong.get(address, (now, 0))
        return 0.0 if count < self._per_min else max(since + MINUTE_S - now, 0.0)

    def wrong(self, address: str, now: float) -> None:
        """It was wrong."""
        since, count = self._wrong.pop(address, (now, 0))
        if now - since >= MINUTE_S:
            since, count = now, 0
        self._wrong[address] = (since, count + 1)
        if len(self._wrong) > ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]


class Access:
    """Knows the tokens of the store and the sessions of this process."""

    def __init__(self, engine: Engine, session_s: float, logins_per_min: int, now: Callable[[], float]) -> None:
        """``now``: a clock that only goes forward."""
        self._tokens = access.Access(engine)
        self._session_s = session_s
        self._now = now
        self._sessions: dict[str, _Session] = {}
        self._once: tuple[str, float] | None = None
        self._key = secrets.token_bytes(32)
        self.tries = Tries(logins_per_min)

    def close(self) -> None:
        """Nobody is known any more."""
        self._tokens.close()
        self._sessions.clear()

    def once(self) -> str:
        """A new token that is good for one log-in as admin; the one before it is not, any more."""
        token = PREFIX + "once_" + secrets.token_urlsafe(32)
        self._once = (digest(token), self._now() + ONCE_S)
        return token

    def bearer(self, header: str) -> Visitor | None:
        """Whose token the header ``Authorization`` carries."""
        found = self._tokens.known(header)
        role = role_of(found.role) if found is not None else None
        return None if found is None or role is None else Visitor(found.name, role, "", [])

    def log_in(self, token: str) -> str | None:
        """A new session for this token, as its cookie's value; None if the token is nothing here."""
        now = self._now()
        found = self._tokens.known("Bearer " + token)
        role = role_of(found.role) if found is not None else None
        if found is not None and role is not None:
            session = _Session(found.name, role, secrets.token_urlsafe(32), digest(token), now + self._session_s, [])
        elif self._once is not None and now < self._once[1] and hmac.compare_digest(self._once[0], digest(token)):
            self._once = None
            session = _Session(ONCE_NAME, Role.ADMIN, secrets.token_urlsafe(32), None, now + self._session_s, [])
        else:
            return None
        value = secrets.token_urlsafe(32)
        for key in [key for key, known in self._sessions.items() if known.ends_at <= now]:
            del self._sessions[key]
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[digest(value)] = session
        return value

    def visitor(self, cookie: str) -> Visitor | None:
        """Who has this cookie."""
        key = digest(cookie)
        session = self._sessions.get(key)
        if session is None:
            return None
        role: Role | None = session.role
        if session.token is not None:
            # What the token allows now, not when the session began.
            role = role_of(self._tokens.role(session.token))
        if role is None or self._now() >= session.ends_at:
            del self._sessions[key]
            return None
        return Visitor(session.name, role, session.csrf, session.notices)

    def log_out(self, cookie: str) -> None:
        """End a session."""
        self._sessions.pop(digest(cookie), None)

    def form_mark(self, nonce: str) -> str:
        """What the log-in form must carry beside the cookie with this nonce."""
        return hmac.new(self._key, nonce.encode(errors="replace"), "sha256").hexdigest()
