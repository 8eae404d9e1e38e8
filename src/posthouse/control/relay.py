"""Operations on the relay's keys: which agents may connect, approving and revoking them.

In: public keys, as addresses, base64 or hex. Out: records on the shelf ``relay.keys``, one for each key that
registered or that an operator named. Every change goes through ``change``, whoever asks for it; the relay of this
process is told by the engine (``on_call``) and closes the connection of a revoked key at once.

A record is JSON under the key's hex: {"state", "code", "registered_at", "changed_at", "by"}; instants are
microseconds since 1970.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import BadAddress, InvalidInput, StoreCorrupt
from ..mailbox.command import Keep
from ..mailbox.message import Instant
from ..mailbox.store import Store
from ..wire.address import PUBLIC_KEY_BYTES, address_of, parse_address
from . import view
from .operation import PAGE_MAX, Answer, Changing, Context, Json, Refused, operation

SHELF = "relay.keys"

PENDING = "pending"
"""Registered; in locked mode it may not connect yet."""
APPROVED = "approved"
REVOKED = "revoked"
"""It may not connect in any mode."""
STATES = (PENDING, APPROVED, REVOKED)

_changing = threading.Lock()


class Key(NamedTuple):
    """What is known of one public key."""

    state: str
    code: str
    """What its owner presents to claim it; '' where an operator named it first."""
    registered_at: Instant
    changed_at: Instant
    by: str
    """Who made it what it is: an operator, ``claim``, ``register`` or ``import``."""

    def encode(self) -> bytes:
        """As it is kept."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def decode(value: bytes) -> Key:
    """A kept record; StoreCorrupt if it is none."""
    try:
        fields = json.loads(value)
        key = Key(**{name: fields[name] for name in Key._fields})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"shelf {SHELF} keeps what is no record of a key") from error
    if key.state not in STATES:
        raise StoreCorrupt(f"shelf {SHELF} keeps a key in state {key.state!r}")
    return key


def each(store: Store) -> Iterator[tuple[bytes, Key]]:
    """Every key that is kept."""
    after = ""
    while page := store.kept(SHELF, after, PAGE_MAX):
        for name, value in page:
            yield bytes.fromhex(name), decode(value)
        after = page[-1][0]


def change(access: Changing, public_key: bytes, decide: Callable[[Key | None], Key | None]) -> Key | None:
    """Read a key's record, let ``decide`` make the new one (None leaves it as it is), keep that.

    Blocking, and one at a time, so that nobody decides on a record that another is changing.
    """
    name = public_key.hex()
    with _changing:
        kept = access.store.kept_value(SHELF, name)
        before = None if kept is None else decode(kept)
        after = decide(before)
        if after is None or after == before:
            return before
        access.call(Keep(SHELF, name, after.encode()))
    return after


def public_key_of(text: str) -> bytes:
    """A public key from an address, hex or base64; InvalidInput if it is none."""
    if text.startswith("pinch:"):
        try:
            return parse_address(text).public_key
        except BadAddress as error:
            raise InvalidInput(f"no address: {error}") from error
    try:
        raw = bytes.fromhex(text) if len(text) == 2 * PUBLIC_KEY_BYTES else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != PUBLIC_KEY_BYTES:
        raise InvalidInput(f"neither an address nor a public key in base64 or hex: {text[:80]!r}")
    return raw


def _shown(context: Context, public_key: bytes, key: Key) -> Json:
    return {
        "address": address_of(public_key, context.config.text("relay.public_host")),
        "public_key": base64.b64encode(public_key).decode(),
        "state": key.state,
        "claim_code": key.code or None,
        "registered_at": view.instant(key.registered_at),
        "changed_at": view.instant(key.changed_at),
        "by": key.by,
    }


@operation("relay.keys")
def keys(context: Context, *, state: str | None = None, after: str = "", limit: int = 50) -> Answer:
    """Keys in the order of their bytes, a page at a time."""
    if state is not None and state not in STATES:
        return Refused("unknown_state", f"a key is one of {', '.join(STATES)}, not {state[:80]!r}")
    found: list[Json] = []
    position = public_key_of(after).hex() if after else ""
    while len(found) < limit and (page := context.store.kept(SHELF, position, min(limit, PAGE_MAX))):
        for name, value in page:
            position = name
            key = decode(value)
            if state is None or key.state == state:
                found.append(_shown(context, bytes.fromhex(name), key))
                if len(found) == limit:
                    break
    return {"keys": found, "locked": context.config.switch("relay.locked")}


def _set(context: Context, text: str, state: str) -> Answer:
    public_key = public_key_of(text)
    now = context.access.now()
    was: list[str | None] = []

    def decide(before: Key | None) -> Key | None:
        was.append(before.state if before else None)
        if before is not None and before.state == state:
            return None
        start = before or Key(state, "", now, now, context.by)
        return start._replace(state=state, changed_at=now, by=context.by)

    key = change(context, public_key, decide)
    assert key is not None
    return {**_shown(context, public_key, key), "was": was[0], "changed": was[0] != state}


@operation("relay.approve")
def approve(context: Context, *, key: str) -> Answer:
    """Let a key connect, whether or not it has registered."""
    return _set(context, key, APPROVED)


@operation("relay.revoke")
def revoke(context: Context, *, key: str) -> Answer:
    """Let a key connect no more, and close its connection."""
    return _set(context, key, REVOKED)
