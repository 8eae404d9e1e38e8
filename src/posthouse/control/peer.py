"""Operations on the peer: its trades, what is to be sent, and whom it is connected with.

In: names of peers and trades. Out: records, and messages for the desk ``outbox`` (``trade`` has both). A peer that runs
in this process is told by the engine (``on_call``) of what is done here.
"""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import InvalidInput
from ..mailbox.command import Command, Filter, Keep, Together
from ..mailbox.message import IN_LANE, SECOND, State
from ..mailbox.outcome import Duplicate
from ..mailbox.outcome import Refused as NotPosted
from ..mailbox.store import MessageView
from . import view
from .operation import PAGE_MAX, Answer, Context, Json, Refused, operation
from .trade import INBOX_DESK, OUTBOX_DESK, STOP_S, TIMEOUT_S, TRADES, Trade, decode, each, heard, number_of, outgoing

_running: weakref.WeakKeyDictionary[Any, Callable[[], Json]] = weakref.WeakKeyDictionary()


def running(access: object, live: Callable[[], Json]) -> None:
    """A peer runs on this engine, and ``live`` tells how it stands."""
    _running[access] = live


def stopped(access: object) -> None:
    """It runs no more."""
    _running.pop(access, None)


_trading: weakref.WeakKeyDictionary[Any, Callable[[], list[Json]]] = weakref.WeakKeyDictionary()


def trading(access: object, orders: Callable[[], list[Json]] | None) -> None:
    """A peer on this engine takes part in the market, and ``orders`` tells what is offered; None: no more."""
    if orders is None:
        _trading.pop(access, None)
    else:
        _trading[access] = orders


@operation("peer.send")
def send(
    context: Context,
    *,
    peer: str,
    trade: str,
    kind: str,
    payload: str,
    order: str = "",
    id: str = "",
    timeout_s: int = 0,
    stop_s: int = STOP_S,
    direct_only: bool = False,
) -> Answer:
    """Put a message into the outbox. ``timeout_s`` is when the trade ends; 0: what is known of it, else in a day.

    ``direct_only``: a trade that this begins never goes any other way than by streams.
    """
    now = context.access.now()
    kept = context.store.kept_value(TRADES, trade) if trade else None
    known = None if kept is None else decode(kept)
    if known is not None and known.peer != peer:
        return Refused("counterparty", f"the other party of trade {trade} is {known.peer}")
    try:
        json.loads(payload)
    except ValueError as error:
        raise InvalidInput(f"the payload is no JSON: {error}") from None
    ends_s = timeout_s or (known.timeout_s if known else 0) or now // SECOND + TIMEOUT_S
    post = outgoing(peer, trade, kind, payload.encode(), id or str(uuid.uuid4()), order, ends_s, now, stop_s)
    commands: tuple[Command, ...] = (post,)
    if known is None or (timeout_s and known.timeout_s != timeout_s):
        record = Trade(peer, now, direct_only=direct_only) if known is None else known
        commands = (Keep(TRADES, trade, record._replace(timeout_s=ends_s).encode()), post)
    outcome = context.apply(Together(commands))
    if isinstance(outcome, NotPosted):
        return Refused(str(outcome.reason), f"the outbox does not take it: {outcome.detail or outcome.reason}")
    last = getattr(outcome, "outcomes", (outcome,))[-1]
    return {"id": post.message.id, "peer": peer, "trade": trade, "duplicate": isinstance(last, Duplicate)}


@operation("peer.trades")
def trades(context: Context, *, peer: str = "", after: str = "", limit: int = 100) -> Answer:
    """A page of trades, with the last numbers each way and what waits."""
    found: list[Json] = []
    store = context.store
    for name, trade in each(store):
        if name <= after or (peer and trade.peer != peer):
            continue
        out = store.lane(OUTBOX_DESK, trade.peer, name)
        inbound = store.lane(INBOX_DESK, trade.peer, name)
        found.append(
            {
                "trade": name,
                "peer": trade.peer,
                "opened_at": view.instant_or_none(trade.opened_at),
                "timeout_at": view.instant_or_none(trade.timeout_s * SECOND or None),
                "signed": trade.signed,
                "direct_only": trade.direct_only,
                "local_sequence": trade.base + (out.last_seq if out else 0),
                "remote_sequence": heard(store, name),
                "waiting": out.depth if out else 0,
                "unprocessed": inbound.depth if inbound else 0,
            }
        )
        if len(found) >= min(limit, PAGE_MAX):
            break
    return {"trades": found, "after": found[-1]["trade"] if len(found) >= min(limit, PAGE_MAX) else None}


STATUS = {
    State.READY: "pending",
    State.LEASED: "sent",
    State.RECEIVED: "sent",
    State.DELIVERED: "acked",
    State.PARKED: "pending",
    State.UNCERTAIN: "sent",
    State.CANCELLED: "failed",
    State.EXPIRED: "expired",
}


def status(found: MessageView) -> str:
    """pending, sent, acked, failed or expired."""
    if found.state is State.DEAD:
        return "expired" if found.reason == "deadline" else "failed"
    return STATUS[found.state]


@operation("peer.outbox")
def outbox(
    context: Context, *, peer: str | None = None, trade: str | None = None, waiting: bool = False, after: int = 0,
    limit: int = 100,
) -> Answer:  # fmt: skip
    """A page of the outbox, oldest first; ``waiting``: only what is not finished."""
    states = IN_LANE if waiting else frozenset[State]()
    page = context.store.messages(Filter(OUTBOX_DESK, peer, trade, states=states), after, min(limit, PAGE_MAX))
    known: dict[str, Trade | None] = {}
    rows: list[Json] = []
    for found in page:
        message = found.message
        if message.lane not in known:
            kept = context.store.kept_value(TRADES, message.lane)
            known[message.lane] = None if kept is None else decode(kept)
        rows.append(
            {
                "id": message.id,
                "trade": message.lane,
                "peer": message.mailbox,
                "kind": message.kind,
                "sequence": number_of(known[message.lane], found.seq, message.headers),
                "status": status(found),
                "posted_at": view.instant_or_none(found.posted_at),
                "attempts": found.attempts,
                "expires_at": view.instant_or_none(found.expires_at),
                "error": None if found.state is State.DELIVERED else found.error or found.reason,
            }
        )
    return {"messages": rows, "after": page[-1].number if len(page) >= min(limit, PAGE_MAX) else None}


@operation("peer.peers")
def peers(context: Context) -> Answer:
    """Who is connected, and what was sent and received; known only while a peer runs."""
    live = _running.get(context.access)
    return {"running": live is not None, **(live() if live is not None else {"id": None, "addresses": [], "peers": []})}


@operation("peer.orders")
def orders(context: Context, *, limit: int = 100) -> Answer:
    """What is offered, by us and by others; known only while a peer runs."""
    offered = _trading.get(context.access)
    found = [] if offered is None else offered()
    rows = [
        {
            **{name: value for name, value in order.items() if name not in ("created_s", "expires_s")},
            "created_at": view.instant_or_none(order["created_s"] * SECOND),
            "expires_at": view.instant_or_none(order["expires_s"] * SECOND),
        }
        for order in found[: min(limit, PAGE_MAX)]
    ]
    return {"running": offered is not None, "orders": rows, "total": len(found)}
