"""What can be asked of an agent by name: through the process that has it open, or on its store.

In: a name and plain parameters, as all operations. Out: plain results. Nothing here needs a connection: what is to
be sent is put into the outbox, and whoever is connected takes it from there.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

from ..config import Config, Source, Value
from ..control.operation import Answer, Context, Refused, operation
from ..errors import InvalidInput
from ..mailbox.command import Settle, Verdict
from ..mailbox.outcome import Refused as RefusedOutcome
from . import desk
from .book import TEXT, Book, Draft
from .identity import FILE_NAME, Identity

HISTORY_MAX = 1_000
_posting = threading.Lock()
"""One at a time: each message counts on from the one before."""


def folder_of(config: Config) -> Path:
    """Where the configured agent lives."""
    return config.path("agent.dir") / config.text("agent.name")


def config_of(config: Config) -> Config:
    """The configuration of an agent's own store."""
    store = folder_of(config) / desk.STORE_NAME
    own = {
        "store.path": str(store),
        "control.path": f"{store}.sock",
        "store.node": f"agent-{config.text('agent.name')}",
    }
    values = {**config.values, **{name: Value(value, Source.DEFAULT, "agent.dir") for name, value in own.items()}}
    return dataclasses.replace(config, values=values, policies=desk.POLICIES, desk_values={})


def _book(context: Context) -> Book:
    return Book(Identity.load(context.config.path("store.path").parent / FILE_NAME), context.store)


def _post(context: Context, draft: Callable[[Book, int], Draft]) -> Answer:
    with _posting:
        made = draft(_book(context), context.access.now() // 1_000)
        outcome = context.apply(made.command)
    if isinstance(outcome, RefusedOutcome):
        return Refused(str(outcome.reason), f"the outbox does not take it: {outcome.detail or outcome.reason}")
    return {"id": made.id, "to": made.recipient}


@operation("agent.whoami")
def whoami(context: Context) -> Answer:
    """Who the agent is."""
    book = _book(context)
    return {
        "address": book.address,
        "public_key": base64.b64encode(book.identity.public_key).decode(),
        "relay_host": book.host,
        "folder": str(context.config.path("store.path").parent),
    }


@operation("agent.send")
def send(context: Context, *, to: str, content: str, content_type: str = TEXT) -> Answer:
    """Put a message into the outbox; ``content`` is base64."""
    try:
        raw = base64.b64decode(content, validate=True)
    except binascii.Error:
        raise InvalidInput("content must be base64") from None
    return _post(context, lambda book, now: book.message(to, raw, content_type, now, secrets.token_bytes(34)))


@operation("agent.connect")
def connect(context: Context, *, to: str, greeting: str = "", called: str = "") -> Answer:
    """Ask somebody."""
    return _post(context, lambda book, now: book.request(to, greeting, called, now, secrets.token_bytes(10)))


@operation("agent.accept")
def accept(context: Context, *, who: str, called: str = "") -> Answer:
    """Say yes to somebody who asked."""
    return _post(context, lambda book, now: book.accept(who, called, now, secrets.token_bytes(10)))


@operation("agent.reject")
def reject(context: Context, *, who: str) -> Answer:
    """Say nothing to somebody who asked."""
    book = _book(context)
    address = book.resolve(who)
    context.apply(book.reject(who, context.access.now() // 1_000))
    return {"to": address}


@operation("agent.block")
def block(context: Context, *, who: str) -> Answer:
    """Take nothing more from somebody."""
    return _post(context, lambda book, now: book.block(who, now, secrets.token_bytes(10)))


@operation("agent.unblock")
def unblock(context: Context, *, who: str) -> Answer:
    """Undo it."""
    return _post(context, lambda book, now: book.unblock(who, now, secrets.token_bytes(10)))


@operation("agent.contacts")
def contacts(context: Context) -> Answer:
    """Everybody there is."""
    return {"contacts": [contact.as_json() for contact in _book(context).contacts()]}


@operation("agent.inbox")
def inbox(context: Context, *, limit: int = 100) -> Answer:
    """What nobody has looked at."""
    return {"items": _book(context).unread(min(limit, HISTORY_MAX))}


@operation("agent.read")
def read(context: Context, *, peers: list[str], ids: list[str]) -> Answer:
    """These were looked at: each a peer and an id."""
    if len(peers) != len(ids):
        raise InvalidInput("as many peers as ids")
    refs = [desk.inbound_ref(peer, id) for peer, id in zip(peers, ids, strict=True)]
    context.access.call(*(Settle(ref, None, Verdict.DELIVERED) for ref in refs))
    return {}


@operation("agent.history")
def history(context: Context, *, who: str | None = None, limit: int = 50) -> Answer:
    """The last messages from and to somebody, or all."""
    return {"items": _book(context).history(who, min(limit, HISTORY_MAX))}


@operation("agent.sent")
def sent(context: Context, *, to: str, id: str) -> Answer:
    """What became of a message."""
    book = _book(context)
    found = book.sent(book.resolve(to), id)
    return found or Refused("not_found", f"no message {id} was sent to {to}")
