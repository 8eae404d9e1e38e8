"""Which keys may connect: registration, claims, and the operator's word.

In: requests to register a public key or to claim one, and changes that others make on the shelf ``relay.keys``.
Out: answers, and for each connection whether its key is admitted. In open mode every key is that was not revoked;
in locked mode only those that were approved, by a claim or by an operator.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qs

from ..control.operation import Access
from ..control.relay import APPROVED, PENDING, REVOKED, SHELF, Key, change, decode, each
from ..mailbox.command import Command, Keep
from ..wire.address import PUBLIC_KEY_BYTES, address_of
from . import claim, http

KEY_NOT_REGISTERED = "key not registered"

PER_S = 1.0
BURST = 5
CLIENTS_MAX = 4_096
"""Network addresses whose requests are counted; the least recently seen is forgotten."""
PENDING_MAX = 10_000
"""Keys that registered and were not approved; past it nobody can register until an operator sees to them."""
CHANGES_MAX = 8
"""Requests that may change the shelf at once; more are told to come again."""


class Challenge(Protocol):
    """Decides whether whoever claims a key may: a shared secret, a captcha service, a directory …"""

    async def passes(self, token: str, remote: str) -> bool:
        """``token`` is what the claim presents, ``remote`` the network address that it came from."""


class SharedSecret:
    """The claim must present a secret that the operator gave out. Compared in constant time."""

    def __init__(self, secret: str) -> None:
        self._digest = hashlib.sha256(secret.encode()).digest()

    async def passes(self, token: str, remote: str) -> bool:
        """Whether it is the secret."""
        # JSON can hold what is no text: half of a pair of surrogates.
        return hmac.compare_digest(hashlib.sha256(token.encode(errors="surrogatepass")).digest(), self._digest)


class Buckets:
    """So many requests a second from one network address, and a few at once."""

    def __init__(self, per_s: float = PER_S, burst: int = BURST) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, remote: str, now_s: float) -> float:
        """0 if the request may pass, else the seconds until one may."""
        tokens, at_s = self._tokens.pop(remote, (float(self._burst), now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) * self._per_s)
        wait_s = 0.0 if tokens >= 1 else (1 - tokens) / self._per_s
        self._tokens[remote] = (tokens - 1 if tokens >= 1 else tokens, now_s)
        if len(self._tokens) > CLIENTS_MAX:
            self._tokens.popitem(last=False)
        return wait_s


class Registration:
    """The keys as this process knows them, and the requests about them. Lives in one event loop."""

    def __init__(
        self,
        access: Access,
        host: str,
        *,
        locked: bool,
        challenge: Challenge | None,
        on_revoked: Callable[[str], None],
    ) -> None:
        """``on_revoked`` is told the address of a key that may connect no longer."""
        self.locked = locked
        self._access = access
        self._host = host
        self._challenge = challenge
        self._on_revoked = on_revoked
        self._states: dict[bytes, str] = {}
        self._codes: dict[str, bytes] = {}
        self._pending = 0
        self._changes = 0
        self._buckets = Buckets()
        self._loop = asyncio.get_running_loop()

    def load(self) -> None:
        """Read the shelf; blocking."""
        for public_key, key in each(self._access.store):
            self._learn(public_key, key)

    def admits(self, public_key: bytes) -> str | None:
        """None, or the reason for which this key may not connect."""
        state = self._states.get(public_key)
        if state == REVOKED or (self.locked and state != APPROVED):
            return KEY_NOT_REGISTERED
        return None

    def state(self, public_key: bytes) -> str | None:
        """What a key is; None: nobody registered it. From any thread."""
        return self._states.get(public_key)

    def told(self, commands: Sequence[Command]) -> None:
        """Commands that a plain thread applied; called on that thread."""
        for command in commands:
            if isinstance(command, Keep) and command.shelf == SHELF and command.value is not None:
                self._loop.call_soon_threadsafe(self._changed, bytes.fromhex(command.key), decode(command.value))

    def _changed(self, public_key: bytes, key: Key) -> None:
        self._learn(public_key, key)
        if self.admits(public_key) is not None:
            self._on_revoked(address_of(public_key, self._host))

    def _learn(self, public_key: bytes, key: Key) -> None:
        self._pending += (key.state == PENDING) - (self._states.get(public_key) == PENDING)
        self._states[public_key] = key.state
        if key.code:
            self._codes[key.code] = public_key

    # Requests

    async def register(self, body: bytes, remote: str, now_s: float) -> http.Answer:
        """POST /agents/register."""
        if limited := self._limit(remote, now_s):
            return limited
        document = _document(body)
        text = document.get("public_key") if document is not None else None
        if not isinstance(text, str):
            return http.wrong(400, 'the body must be JSON: {"public_key": base64 of 32 bytes}')
        try:
            public_key = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            return http.wrong(400, "public_key is not standard base64")
        if len(public_key) != PUBLIC_KEY_BYTES:
            return http.wrong(400, f"public_key must have {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
        state = self._states.get(public_key)
        if state == REVOKED:
            return http.wrong(403, "key revoked")
        if state is None and not self.locked:
            # Nothing to wait for, so nothing to keep; clients want a code all the same.
            return http.as_json(200, {"address": address_of(public_key, self._host), "claim_code": self._new_code()})
        if state is None and self._pending >= PENDING_MAX:
            return http.wrong(503, "too many keys wait to be approved", _retry_after(60))

        def decide(before: Key | None) -> Key | None:
            now = self._access.now()
            if before is None:
                return Key(PENDING, self._new_code(), now, now, "register")
            if not before.code:
                # An operator named it before it registered.
                return before._replace(code=self._new_code())
            # The same code again: whoever knows a public key cannot take its owner's code away.
            return None

        key = await self._change(public_key, decide)
        if isinstance(key, http.Answer):
            return key
        return http.as_json(200, {"address": address_of(public_key, self._host), "claim_code": key.code})

    async def claim(self, body: bytes, kind: str, remote: str, now_s: float) -> http.Answer:
        """POST /agents/claim, as JSON or from the page's form."""
        if not self.locked:
            return http.wrong(404, "this relay is open: there is nothing to claim")
        # Programs that send JSON often call it a form, since their libraries do.
        is_form = kind.lower().startswith("application/x-www-form-urlencoded") and not body.lstrip().startswith(b"{")

        def refuse(answer: http.Answer) -> http.Answer:
            return claim.refused(answer, json.loads(answer.body)["error"]) if is_form else answer

        if limited := self._limit(remote, now_s):
            return refuse(limited)
        document = _form(body) if is_form else _document(body)
        code, token = (document or {}).get("claim_code"), (document or {}).get("turnstile_token")
        if not isinstance(code, str) or not isinstance(token, str):
            return refuse(http.wrong(400, "claim_code and turnstile_token must be given"))
        if self._challenge is None:
            return refuse(http.wrong(403, "claims are switched off here: ask the operator to approve the key"))
        if not await self._challenge.passes(token, remote):
            return refuse(http.wrong(403, "challenge not passed"))
        public_key = self._codes.get(code.strip().lower())
        if public_key is None:
            return refuse(http.wrong(404, "unknown claim code"))

        def decide(before: Key | None) -> Key | None:
            if before is None or before.state != PENDING:
                return None
            return before._replace(state=APPROVED, changed_at=self._access.now(), by="claim")

        key = await self._change(public_key, decide)
        if isinstance(key, http.Answer):
            return refuse(key)
        if key.state != APPROVED:
            return refuse(http.wrong(403, "key revoked"))
        address = address_of(public_key, self._host)
        return claim.approved(address) if is_form else http.as_json(200, {"address": address, "status": APPROVED})

    def _limit(self, remote: str, now_s: float) -> http.Answer | None:
        wait_s = self._buckets.take(remote, now_s)
        return http.wrong(429, "too many requests", _retry_after(wait_s)) if wait_s else None

    async def _change(self, public_key: bytes, decide: Callable[[Key | None], Key | None]) -> Key | http.Answer:
        if self._changes >= CHANGES_MAX:
            return http.wrong(503, "busy", _retry_after(1))
        self._changes += 1
        try:
            # In a thread: it waits for a commit, and for whoever else changes a key.
            key = await asyncio.to_thread(change, self._access, public_key, decide)
        finally:
            self._changes -= 1
        assert key is not None
        self._learn(public_key, key)
        return key

    def _new_code(self) -> str:
        while (code := secrets.token_hex(4)) in self._codes:
            pass
        return code


def _retry_after(wait_s: float) -> tuple[tuple[str, str], ...]:
    return (("Retry-After", str(max(1, round(wait_s + 0.499)))),)


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _form(body: bytes) -> dict[str, Any] | None:
    try:
        fields = parse_qs(body.decode(), max_num_fields=10)
    except ValueError:
        return None
    return {name: values[0] for name, values in fields.items()}
