"""An agent's book: what it asks of its engine, and what it reads from its store.

In: an identity, a store, the time and randomness. Out: commands, and messages and contacts as plain values.
It applies nothing and sends nothing: whoever holds the engine does.
"""

from __future__ import annotations

import base64
import datetime
from collections import deque
from typing import Any, NamedTuple

from ..errors import BadAddress, InvalidInput, WireError
from ..mailbox.command import Command, Filter, Keep, Post, Together
from ..mailbox.message import FINISHED, State
from ..mailbox.store import MessageView, Store
from ..wire import envelope as wire
from ..wire.address import address_of, parse_address
from ..wire.envelope import PlaintextPayload
from . import contact as contacts
from .contact import Contact, Standing, check_contact_name, check_greeting, contact_from
from .desk import HOST_KEY, INBOX, OUTBOX, SHELF, confirmation_id, inbound_ref, outbound
from .identity import NONCE_BYTES, Identity
from .session import open_message
from .uuid7 import uuid7

ENVELOPE_BYTES_MAX = 61_440
"""What other clients send at most; a relay takes a little more."""
REQUEST_S = 7 * 86_400
TEXT = "text/plain"
_PAGE = 500
_CONTACTS_MAX = 100_000


class Draft(NamedTuple):
    """Something for the outbox."""

    id: str
    recipient: str
    command: Command


class Book:
    """One agent's identity and store."""

    def __init__(self, identity: Identity, store: Store) -> None:
        self.identity = identity
        self._store = store

    # Who.

    @property
    def host(self) -> str | None:
        """The host of our relay, once we were connected."""
        kept = self._store.kept_value(SHELF, HOST_KEY)
        return None if kept is None else kept.decode()

    @property
    def address(self) -> str | None:
        """Our own address, once we were connected."""
        host = self.host
        return None if host is None else address_of(self.identity.public_key, host)

    def keep_host(self, host: str) -> Command:
        """Remember the relay's host: from then on no other is taken for it."""
        return Keep(SHELF, HOST_KEY, host.encode())

    def contact(self, address: str) -> Contact | None:
        """One contact."""
        kept = self._store.kept_value(contacts.SHELF, address)
        return None if kept is None else contact_from(kept)

    def contacts(self) -> list[Contact]:
        """All of them, by address."""
        found: list[Contact] = []
        page = self._store.kept(contacts.SHELF, "", _PAGE)
        while page and len(found) < _CONTACTS_MAX:
            found += [contact_from(value) for _, value in page]
            page = self._store.kept(contacts.SHELF, page[-1][0], _PAGE)
        return found

    def resolve(self, who: str) -> str:
        """The address of a contact by its name, or a well-formed address as it is; InvalidInput if it is neither."""
        if ":" not in who and "@" not in who:
            named = [contact.address for contact in self.contacts() if contact.name == who]
            if len(named) == 1:
                return named[0]
            raise InvalidInput(
                f"no contact is called {who[:80]!r}; write the address, or name it with `connect --name`"
            )
        try:
            address = parse_address(who)
        except BadAddress as error:
            raise InvalidInput(str(error)) from None
        if address.public_key == self.identity.public_key:
            raise InvalidInput("that is our own address")
        host = self.host
        if host is not None and address.host != host:
            raise InvalidInput(f"{who} is at another relay; ours is that of {host}")
        return who

    # What goes out.

    def message(
        self, to: str, content: bytes, content_type: str, now_ms: int, random: bytes, id: str | None = None
    ) -> Draft:
        """An encrypted message; InvalidInput if it is too large. ``random`` is 34 bytes: of the id and the nonce."""
        recipient, key, sender = self._parties(to)
        contact = self.contact(recipient)
        if contact is not None and contact.standing is Standing.BLOCKED:
            raise InvalidInput("this contact is blocked: unblock it first")
        id, nonce = id or uuid7(now_ms, random[:10]), random[10 : 10 + NONCE_BYTES]
        lane = self._store.lane(OUTBOX.name, recipient, "")
        plain = PlaintextPayload(
            version=1,
            sequence=1 if lane is None else lane.last_seq + 1,
            timestamp=now_ms,
            content=content,
            content_type=content_type,
        ).SerializeToString()
        cipher = self.identity.seal(key, plain, nonce)
        envelope = wire.encrypted_message(
            sender, recipient, id.encode(), now_ms, nonce, cipher, self.identity.public_key
        )
        if len(envelope) > ENVELOPE_BYTES_MAX:
            room = ENVELOPE_BYTES_MAX - (len(envelope) - len(content))
            raise InvalidInput(f"a message of {len(content)} bytes; at most {room} can be sent")
        return Draft(id, recipient, Post(outbound(recipient, id, "message", envelope)))

    def request(self, to: str, greeting: str, name: str, now_ms: int, random: bytes) -> Draft:
        """Ask somebody whether we may write to each other; where he has asked us, it is our yes."""
        check_greeting(greeting)
        recipient, _, sender = self._parties(to)
        known = self.contact(recipient)
        name = check_contact_name(name) if name else known.name if known else ""
        if name and any(c.name == name and c.address != recipient for c in self.contacts()):
            raise InvalidInput(f"another contact is called {name!r}")
        if known is not None and known.standing is Standing.BLOCKED:
            raise InvalidInput("this contact is blocked: unblock it first")
        if known is not None and known.standing is Standing.ASKS:
            return self._answer(known._replace(name=name), now_ms, random)
        id = uuid7(now_ms, random[:10])
        envelope = wire.connection_request(
            sender, recipient, id.encode(), now_ms, greeting, self.identity.public_key, now_ms // 1_000 + REQUEST_S
        )
        accepted = known is not None and known.standing is Standing.ACCEPTED
        standing = Standing.ACCEPTED if accepted else Standing.ASKED
        kept = Contact(recipient, standing, name, greeting, now_ms)
        return self._with_contact(id, kept, "connection_request", envelope)

    def accept(self, who: str, name: str, now_ms: int, random: bytes) -> Draft:
        """Say yes to somebody who asked."""
        known = self._asks(who)
        return self._answer(known._replace(name=check_contact_name(name) if name else known.name), now_ms, random)

    def reject(self, who: str, now_ms: int) -> Command:
        """Say nothing to somebody who asked, and do not ask again."""
        known = self._asks(who)
        return self._kept(known._replace(standing=Standing.REJECTED, since_ms=now_ms))

    def block(self, who: str, now_ms: int, random: bytes) -> Draft:
        """Take nothing more from somebody; the relay is told to carry nothing."""
        recipient, _, sender = self._parties(who)
        known = self.contact(recipient) or Contact(recipient, Standing.NONE)
        before = known.before if known.standing is Standing.BLOCKED else known.standing
        kept = known._replace(standing=Standing.BLOCKED, before=before, since_ms=now_ms)
        id = uuid7(now_ms, random[:10])
        envelope = wire.block_notification(sender, recipient, now_ms)
        return self._with_contact(id, kept, "block_notification", envelope)

    def unblock(self, who: str, now_ms: int, random: bytes) -> Draft:
        """Undo it: things are as they were before."""
        recipient, _, sender = self._parties(who)
        known = self.contact(recipient)
        if known is None or known.standing is not Standing.BLOCKED:
            raise InvalidInput("this contact is not blocked")
        kept = known._replace(standing=known.before, before=Standing.NONE, since_ms=now_ms)
        id = uuid7(now_ms, random[:10])
        envelope = wire.unblock_notification(sender, recipient, now_ms)
        return self._with_contact(id, kept, "unblock_notification", envelope)

    def _parties(self, who: str) -> tuple[str, bytes, str]:
        """The recipient's address and key, and our own address at his relay."""
        recipient = self.resolve(who)
        address = parse_address(recipient)
        return recipient, address.public_key, address_of(self.identity.public_key, address.host)

    def _asks(self, who: str) -> Contact:
        known = self.contact(self.resolve(who))
        if known is None or known.standing is not Standing.ASKS:
            raise InvalidInput(f"nobody of that address asks us: {who}")
        return known

    def _answer(self, known: Contact, now_ms: int, random: bytes) -> Draft:
        id, (recipient, _, sender) = uuid7(now_ms, random[:10]), self._parties(known.address)
        envelope = wire.connection_response(sender, recipient, id.encode(), now_ms, True, self.identity.public_key)
        kept = known._replace(standing=Standing.ACCEPTED, since_ms=now_ms)
        return self._with_contact(id, kept, "connection_response", envelope)

    def _with_contact(self, id: str, kept: Contact, kind: str, envelope: bytes) -> Draft:
        post = Post(outbound(kept.address, id, kind, envelope))
        return Draft(id, kept.address, Together((post, self._kept(kept))))

    def _kept(self, contact: Contact) -> Command:
        gone = contact.standing is Standing.NONE and not contact.name
        return Keep(contacts.SHELF, contact.address, None if gone else contact.as_bytes())

    # What there is to see.

    def unread(self, limit: int = 1_000) -> list[dict[str, Any]]:
        """What nobody has looked at, oldest first."""
        waiting = Filter(INBOX.name, states=frozenset({State.READY, State.LEASED, State.RECEIVED}))
        return [self.shown(view) for view in self._store.messages(waiting, limit=limit)]

    def history(self, who: str | None, limit: int) -> list[dict[str, Any]]:
        """The last messages from and to one contact, or all, oldest first."""
        mailbox = None if who is None else self.resolve(who)
        found: list[MessageView] = []
        for desk in (OUTBOX.name, INBOX.name):
            kind = "message" if desk == INBOX.name else None
            last: deque[MessageView] = deque(maxlen=limit)
            after = 0
            while page := self._store.messages(Filter(desk, mailbox, kind=kind), after, _PAGE):
                last.extend(page)
                after = page[-1].number
            found += last
        found.sort(key=lambda view: view.number)
        return [self.shown(view) for view in found[-limit:]]

    def sent(self, recipient: str, id: str) -> dict[str, Any] | None:
        """What became of one message of the outbox."""
        view = self._store.message(outbound(recipient, id, "", b"").ref)
        return None if view is None else self.shown(view)

    def shown(self, view: MessageView) -> dict[str, Any]:
        """A message of either desk as plain values."""
        message, out = view.message, view.message.desk == OUTBOX.name
        known = self.contact(message.mailbox)
        plain: dict[str, Any] = {
            "id": message.id,
            "direction": "out" if out else "in",
            "peer": message.mailbox,
            "name": known.name if known and known.name else None,
            "contact": str(known.standing) if known else None,
            "kind": message.kind,
            "at": _iso(view.posted_at),
            "state": _state(view) if out else "read" if view.state in FINISHED else "unread",
        }
        if out:
            plain["reason"] = _reason(view)
        return plain | self._content(view, out)

    def _content(self, view: MessageView, out: bool) -> dict[str, Any]:
        """What the envelope says, as far as there is one."""
        message = view.message
        try:
            envelope = wire.parse(message.body)
            if message.kind == "message":
                plain = open_message(self.identity, envelope, parse_address(message.mailbox).public_key)
            elif message.kind == "delivery_confirm":
                return {"confirms": message.cause, "was_stored": envelope.delivery_confirm.was_stored}
            elif message.kind == "connection_request":
                return {"text": envelope.connection_request.message}
            elif message.kind == "connection_response":
                return {"accepted": envelope.connection_response.accepted}
            else:
                return {}
        except WireError as error:
            return {"error": str(error)}
        content: dict[str, Any] = {"content_type": plain.content_type, "sequence": plain.sequence}
        try:
            content["text"] = plain.content.decode()
        except UnicodeDecodeError:
            content["data"] = base64.b64encode(plain.content).decode()
        if out and view.state is State.DELIVERED:
            receipt = self._store.bodies([inbound_ref(message.mailbox, confirmation_id(message.id))])[0]
            if receipt is not None:
                confirm = wire.parse(receipt).delivery_confirm
                content["was_stored"] = confirm.was_stored
                content["confirmed_at"] = _iso(confirm.timestamp * 1_000)
        return content


_STATES = {
    State.DELIVERED: "delivered",
    State.DEAD: "undelivered",
    State.EXPIRED: "undelivered",
    State.CANCELLED: "cancelled",
    State.PARKED: "set aside",
    State.UNCERTAIN: "set aside",
}


def _state(view: MessageView) -> str:
    """What a sender wants to know: here, with the relay, delivered, or not."""
    done = _STATES.get(view.state)
    if done is not None:
        return done
    return "with the relay" if view.progress else "queued"


def _reason(view: MessageView) -> str | None:
    """Why it is not delivered, as far as anybody said so."""
    if view.state is State.DELIVERED:
        return None
    if view.state not in FINISHED:
        # What the relay said when it refused it; that it was not confirmed yet, everybody sees.
        return view.error
    return "nobody confirmed it in time" if view.reason == "deadline" else view.reason


def _iso(at_us: int) -> str:
    # The year 9999 is as far as a date goes; what a peer claims may be anything.
    try:
        moment = datetime.datetime.fromtimestamp(at_us / 1e6, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_us)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
