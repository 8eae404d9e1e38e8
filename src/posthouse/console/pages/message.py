"""One message: how it stands, its whole life, what caused it and what it caused."""

from __future__ import annotations

from aiohttp import web

from ...control.operation import Answer, Json, Refused
from ...errors import WireError
from ...mailbox.message import Ref
from ..page import Ask, Page, refusal

BODY_BYTES = 65_536


async def search(ask: Ask) -> web.StreamResponse:
    """Ask for an id, or show the message that it leads to."""
    id = ask.text("id")
    if id is None:
        return ask.render("search.html")
    which = {"desk": ask.text("desk"), "mailbox": ask.text("mailbox"), "sender": ask.given("sender")}
    found: Answer = await ask.answer("message.show", id=id, **which, body_bytes_max=BODY_BYTES)
    if isinstance(found, Refused) and found.code == "ambiguous":
        return ask.render(
            "search.html", title=f"Messages {id}", id=id, candidates=found.detail["candidates"], sentence=found.message
        )
    told: Answer = await ask.answer("message.history", id=id, **which)
    if isinstance(found, Refused) and isinstance(told, Refused):
        raise refusal(found)
    message = None if isinstance(found, Refused) else found
    sealed_bytes = None
    if message is not None and not message["memory"]:
        ref = Ref(message["desk"], message["mailbox"], message["sender"], message["id"])
        (data,) = await ask.read(lambda store: store.bodies([ref]))
        sealed_bytes = None if data is None else _sealed_bytes(ref.desk, data)
    events = [] if isinstance(told, Refused) else told["events"]
    return ask.render(
        "message.html",
        title=f"Message {id}",
        id=id,
        message=message,
        gone=found.message if isinstance(found, Refused) else None,
        show_body=ask.text("body") is not None,
        may_read=ask.console.may_read(ask.visitor),
        sealed_bytes=sealed_bytes,
        events=events,
        findings=[] if isinstance(told, Refused) else told["findings"],
        effects=[] if isinstance(told, Refused) else told["effects"],
        cause=(message or {}).get("cause") or _cause(events),
    )


def _cause(events: list[Json]) -> str | None:
    return next((event["cause_id"] for event in events if event["cause_id"]), None)


def _sealed_bytes(desk: str, body: bytes) -> int | None:
    """How long the ciphertext of an end-to-end encrypted envelope is; None where the body is none."""
    if desk != "relay":
        return None
    try:
        from ...wire import envelope
    except ModuleNotFoundError:
        return None
    try:
        found = envelope.parse(body)
    except WireError:
        return None
    return len(found.encrypted.ciphertext) if found.HasField("encrypted") else None


PAGES = (Page("/message", "Message", search, nav="Message"),)
