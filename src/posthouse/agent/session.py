"""One connection of an agent to its relay, without any input or output of its own.

    challenged ── our signature ──→ answered ── the relay admits us ──→ open ──→ ended
         └────────────── wrong host, strange frame, refused ──────────────────────↑

In: frames, pings, pongs and ticks. Out, through its line: frames, pings and pongs; through its office: commands and
happenings. What comes is committed before it is confirmed, and a ping of the relay is answered only when all that came
before it is committed: so a pong of ours proves that it is kept, not just read. What cannot be decrypted is not
confirmed. It reads no clock and no socket.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from ..errors import BadEnvelope, WireError
from ..mailbox.command import Command, Keep, Post, Settle, Together, Verdict
from ..mailbox.message import Ref
from ..mailbox.outcome import Delivery, Done, Duplicate, Outcome, Posted
from ..wire import envelope as wire
from ..wire.address import address_of, is_host, parse_address
from ..wire.auth import NONCE_BYTES, challenge_bytes, confirm_bytes, is_signed
from ..wire.envelope import Envelope, MessageType, PlaintextPayload, id_text, kind_of
from . import contact as contacts
from .contact import Contact, Standing
from .courier import Courier
from .desk import confirmation_id, inbound, inbound_ref, outbound, outbound_ref
from .happening import (
    Connected,
    Delivered,
    Denied,
    HandedOver,
    Happening,
    Ignored,
    Pending,
    QueueFull,
    RateLimited,
)
from .identity import Identity

AUTH_S = 10.0
PING_S = 25.0
PONG_S = 32.0
RESEND_AFTER_S = 15.0
"""What was sent on an earlier connection is not sent again before what the relay kept for us could come."""
LOOK_S = 30.0
"""How often to look for what waited too long."""
LIMITED_S_MAX = 300.0
PINGS_PER_S = 4.0
PING_BURST = 40.0
"""What we allow ourselves: relays close connections that ping too much."""

Then = Callable[[Sequence[Outcome]], None]


class Line(Protocol):
    """What a session may do with its socket."""

    def send(self, data: bytes) -> None: ...

    def ping(self, payload: bytes) -> None: ...

    def pong(self, payload: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Office(Protocol):
    """What a session may ask of the agent that it belongs to."""

    def now_us(self) -> int: ...

    def monotonic_s(self) -> float: ...

    def random(self) -> float: ...

    def new_id(self) -> str: ...

    def submit(self, commands: tuple[Command, ...], then: Then) -> None:
        """Apply them in one commit; ``then`` is called when it is durable, in the order of submission."""

    def contact(self, address: str) -> Contact | None: ...

    def is_known(self, ref: Ref) -> bool: ...

    def bodies(self, refs: Sequence[Ref]) -> list[bytes | None]: ...

    def tell(self, happening: Happening) -> None: ...


class Stage(enum.Enum):
    """How far the connection is."""

    CHALLENGED = enum.auto()
    ANSWERED = enum.auto()
    OPEN = enum.auto()
    ENDED = enum.auto()


class Session:
    """One connection, from the challenge to its end."""

    def __init__(self, identity: Identity, courier: Courier, office: Office, line: Line, host: str | None) -> None:
        """``host`` is the name that the relay must have; None takes any."""
        self._identity = identity
        self._courier = courier
        self._office = office
        self._line = line
        self._host = host
        self.stage = Stage.CHALLENGED
        self.address = ""
        self._opened_s = self._pinged_s = self._ponged_s = office.monotonic_s()
        self._ping_tokens = PING_BURST
        self._mark = 0
        self._proving: int | None = None
        self._submitted = 0
        self._committed = 0
        self._pongs: deque[tuple[int, bytes]] = deque()
        self._confirms: deque[tuple[int, bytes]] = deque()
        """Confirmations that no pong has proven yet, each with the number of the next ping."""
        self._again: deque[bytes] = deque()
        """Confirmations that may have been discarded: sent again one by one."""
        self._again_s = 0.0
        self._looked_s = 0.0

    # What comes.

    def frame(self, data: bytes) -> None:
        """One binary message."""
        try:
            envelope = wire.parse(data)
        except WireError as error:
            if self.stage is not Stage.OPEN:
                self._deny(f"the relay does not speak Pinch: {error}")
            return
        if self.stage is Stage.CHALLENGED:
            self._challenge(envelope)
        elif self.stage is Stage.ANSWERED:
            self._result(envelope)
        elif self.stage is Stage.OPEN:
            self._take(envelope, data)

    def ping(self, payload: bytes) -> None:
        """The relay's ping: answered when all before it is committed."""
        self._pongs.append((self._submitted, payload))
        self._answer_pings()

    def pong(self, payload: bytes) -> None:
        """The answer to one of ours."""
        self._ponged_s = self._office.monotonic_s()
        mark = int.from_bytes(payload, "big") if len(payload) == 8 else 0
        if self._proving is None or mark != self._proving:
            return
        self._proving = None
        while self._confirms and self._confirms[0][0] <= mark:
            self._confirms.popleft()
        self._submit(self._courier.proven(mark, self._now_ms()))
        self.advance()
        if self._courier.idle:
            self._office.tell(HandedOver())

    def tick(self) -> None:
        """Called a few times a second."""
        now_s = self._office.monotonic_s()
        if self.stage in (Stage.CHALLENGED, Stage.ANSWERED):
            if now_s - self._opened_s > AUTH_S:
                self._line.close(1002, "no authentication")
            return
        if self.stage is not Stage.OPEN:
            return
        if now_s - self._ponged_s > PONG_S:
            self._line.close(1002, "heartbeat timeout")
            return
        if self._again and now_s >= self._again_s:
            self._confirm(self._again.popleft())
        now_ms = self._now_ms()
        self._submit(self._courier.settled(now_ms))
        if now_s - self._opened_s > RESEND_AFTER_S and now_s - self._looked_s > LOOK_S:
            self._looked_s = now_s
            overdue = self._courier.overdue(now_ms)
            if overdue:
                self._courier.again(overdue, self._office.bodies(overdue))
        self.advance()
        since_s = now_s - self._pinged_s
        if self._may_ping() and since_s >= (1.0 if self._confirms else PING_S):
            self._send_ping()

    def lost(self) -> None:
        """The connection is gone."""
        self.stage = Stage.ENDED
        self._courier.lost()

    # The outbox.

    def taken(self, deliveries: Sequence[Delivery]) -> None:
        """Something was leased from the outbox."""
        self._submit(self._courier.taken(deliveries, self._now_ms()))
        self.advance()
        if self._courier.idle:
            self._office.tell(HandedOver())

    def advance(self) -> None:
        """Write what may be written, and a ping behind it."""
        if self.stage is not Stage.OPEN:
            return
        for _, data in self._courier.to_write(self._office.monotonic_s()):
            self._line.send(data)
        if self._may_ping() and self._courier.marked(self._mark + 1):
            self._send_ping()

    def _may_ping(self) -> bool:
        """One at a time, and not too many in a row. A confirmation proves as much as a pong does."""
        rested_s = self._office.monotonic_s() - self._pinged_s
        return self._proving is None and self._ping_tokens + rested_s * PINGS_PER_S >= 1

    def _send_ping(self) -> None:
        self._mark += 1
        self._proving = self._mark
        now_s = self._office.monotonic_s()
        self._ping_tokens = min(self._ping_tokens + (now_s - self._pinged_s) * PINGS_PER_S, PING_BURST) - 1
        self._pinged_s = now_s
        self._line.ping(self._mark.to_bytes(8, "big"))

    # Authentication.

    def _challenge(self, envelope: Envelope) -> None:
        challenge = envelope.auth_challenge
        type: int = envelope.type
        if type != MessageType.AUTH_CHALLENGE or not envelope.HasField("auth_challenge"):
            self._deny("the relay sent no challenge")
        elif len(challenge.nonce) != NONCE_BYTES or not is_host(challenge.relay_host):
            self._deny("the relay's challenge is malformed")
        elif self._host is not None and challenge.relay_host.lower() != self._host.lower():
            self._deny(f"this is the relay of {challenge.relay_host}, not of {self._host}")
        else:
            self._host = challenge.relay_host
            signature = self._identity.sign(challenge_bytes(challenge.relay_host, challenge.nonce))
            self.stage = Stage.ANSWERED
            self._line.send(wire.auth_response(self._identity.public_key, signature, challenge.nonce))

    def _result(self, envelope: Envelope) -> None:
        result = envelope.auth_result
        assert self._host is not None
        type: int = envelope.type
        if type != MessageType.AUTH_RESULT or not envelope.HasField("auth_result"):
            self._deny("the relay did not answer the authentication")
        elif not result.success:
            self._deny(result.error_message or "authentication failed")
        elif result.assigned_address != address_of(self._identity.public_key, self._host):
            self._deny("the relay assigned an address that is not of this key")
        else:
            self.stage = Stage.OPEN
            self.address = result.assigned_address
            self._ponged_s = self._office.monotonic_s()
            self._office.tell(Connected(self.address, self._host))
            self.advance()

    def _deny(self, reason: str) -> None:
        self.stage = Stage.ENDED
        self._office.tell(Denied(reason))
        self._line.close(1000, "")

    # What agents and the relay say once we are in.

    def _take(self, envelope: Envelope, data: bytes) -> None:
        if not envelope.from_address:
            self._from_relay(envelope)
            return
        type: int = envelope.type
        peer, kind = envelope.from_address, kind_of(type)
        try:
            peer_key = parse_address(peer).public_key
        except WireError:
            return
        if envelope.to_address != self.address:
            return
        known = self._office.contact(peer)
        standing = known.standing if known is not None else Standing.NONE
        if standing is Standing.BLOCKED:
            self._office.tell(Ignored(peer, kind, "blocked"))
        elif type == MessageType.MESSAGE:
            self._take_message(envelope, data, peer, peer_key)
        elif type == MessageType.DELIVERY_CONFIRM:
            self._take_confirm(envelope, data, peer, peer_key)
        elif type == MessageType.CONNECTION_REQUEST:
            self._take_request(envelope, data, peer, peer_key, known)
        elif type == MessageType.CONNECTION_RESPONSE:
            self._take_response(envelope, data, peer, known)
        elif type == MessageType.CONNECTION_REVOKE and standing in (Standing.ACCEPTED, Standing.ASKED):
            assert known is not None
            self._keep(known._replace(standing=Standing.ENDED, since_ms=self._now_ms()), peer, data, kind)

    def _take_message(self, envelope: Envelope, data: bytes, peer: str, peer_key: bytes) -> None:
        try:
            open_message(self._identity, envelope, peer_key)
        except WireError as error:
            # Not confirmed: it stays with the relay, which sets it aside in the end.
            self._office.tell(Ignored(peer, "message", str(error)))
            return
        message_id = envelope.message_id
        id = id_text(message_id) or _id_of(data)

        def stored(outcomes: Sequence[Outcome]) -> None:
            if isinstance(outcomes[0], Posted | Duplicate) and message_id:
                now_ms = self._now_ms()
                signature = self._identity.sign(confirm_bytes(message_id, now_ms))
                self._confirm(wire.delivery_confirm(self.address, peer, message_id, now_ms, signature))

        self._submit([Post(inbound(peer, id, "message", data))], stored)

    def _confirm(self, data: bytes) -> None:
        if self.stage is Stage.OPEN:
            self._line.send(data)
            self._confirms.append((self._mark + 1, data))

    def _take_confirm(self, envelope: Envelope, data: bytes, peer: str, peer_key: bytes) -> None:
        confirm = envelope.delivery_confirm
        if not is_signed(peer_key, confirm.signature, confirm_bytes(confirm.message_id, confirm.timestamp)):
            self._office.tell(Ignored(peer, "delivery_confirm", "the signature is not the recipient's"))
            return
        id = id_text(confirm.message_id)
        if not id or confirm.state != "delivered":
            return
        ref, was_stored = outbound_ref(peer, id), confirm.was_stored
        receipt = Post(inbound(peer, confirmation_id(id), "delivery_confirm", data, cause=id))

        def settled(outcomes: Sequence[Outcome]) -> None:
            # Anything else is a repetition, or a confirmation of what we never sent.
            if isinstance(outcomes[0], Done):
                self._office.tell(Delivered(peer, id, was_stored))

        self._courier.confirmed(ref)
        self._submit([Together((Settle(ref, None, Verdict.DELIVERED), receipt))], settled)
        self.advance()

    def _take_request(self, envelope: Envelope, data: bytes, peer: str, peer_key: bytes, known: Contact | None) -> None:
        request, now_ms = envelope.connection_request, self._now_ms()
        if request.from_address != peer or request.sender_public_key not in (b"", peer_key):
            self._office.tell(Ignored(peer, "connection_request", "it names another sender"))
            return
        if request.expires_at and request.expires_at * 1_000 < now_ms:
            return
        standing = known.standing if known is not None else Standing.NONE
        both = standing in (Standing.ASKED, Standing.ACCEPTED)
        now = Contact(
            peer,
            Standing.ACCEPTED if both else Standing.ASKS,
            known.name if known else "",
            request.message[: contacts.GREETING_CHARACTERS_MAX],
            now_ms,
        )
        answer: tuple[Command, ...] = ()
        if both:
            # We asked too, or accepted before: both want it, and the other may not know.
            id = self._office.new_id()
            reply = wire.connection_response(self.address, peer, id.encode(), now_ms, True, self._identity.public_key)
            answer = (Post(outbound(peer, id, "connection_response", reply)),)
        self._keep(now, peer, data, "connection_request", answer)

    def _take_response(self, envelope: Envelope, data: bytes, peer: str, known: Contact | None) -> None:
        response = envelope.connection_response
        if known is None or known.standing is not Standing.ASKED or response.from_address != peer:
            return
        standing = Standing.ACCEPTED if response.accepted else Standing.REFUSED
        self._keep(known._replace(standing=standing, since_ms=self._now_ms()), peer, data, "connection_response")

    def _keep(self, now: Contact, peer: str, data: bytes, kind: str, more: tuple[Command, ...] = ()) -> None:
        """Keep a contact as it is now, with the envelope that made it so; the same one twice changes nothing."""
        id = _id_of(data)
        if not self._office.is_known(inbound_ref(peer, id)):
            kept = Keep(contacts.SHELF, peer, now.as_bytes())
            self._submit([Together((Post(inbound(peer, id, kind, data)), kept, *more))])

    def _from_relay(self, envelope: Envelope) -> None:
        type: int = envelope.type
        if type == MessageType.QUEUE_STATUS:
            self._office.tell(Pending(envelope.queue_status.pending_count))
        elif type == MessageType.QUEUE_FULL:
            full, id = envelope.queue_full, id_text(envelope.message_id) or None
            office = self._office
            commands = self._courier.full(
                full.recipient_address, id, office.now_us(), full.reason[:500], office.random()
            )
            office.tell(QueueFull(full.recipient_address, id, full.reason))
            self._submit(commands)
        elif type == MessageType.RATE_LIMITED:
            wait_s = min(max(envelope.rate_limited.retry_after_ms / 1_000, 0.05), LIMITED_S_MAX)
            until_s = self._office.monotonic_s() + wait_s
            self._courier.limited(until_s)
            # A confirmation may be what was discarded.
            self._again.extend(data for _, data in self._confirms)
            self._again_s = until_s
            self._confirms.clear()
            self._office.tell(RateLimited(wait_s, envelope.rate_limited.reason))

    # Commits.

    def _submit(self, commands: Sequence[Command], then: Then | None = None) -> None:
        if not commands:
            return
        self._submitted += 1

        def committed(outcomes: Sequence[Outcome]) -> None:
            self._committed += 1
            if then is not None:
                then(outcomes)
            self._answer_pings()

        self._office.submit(tuple(commands), committed)

    def _answer_pings(self) -> None:
        while self._pongs and self._pongs[0][0] <= self._committed:
            payload = self._pongs.popleft()[1]
            if self.stage is not Stage.ENDED:
                self._line.pong(payload)

    def _now_ms(self) -> int:
        return self._office.now_us() // 1_000


def open_message(identity: Identity, envelope: Envelope, peer_key: bytes) -> PlaintextPayload:
    """What a MESSAGE from the owner of ``peer_key`` to us, or from us to him, says; BadEnvelope if it is none."""
    encrypted = envelope.encrypted
    if envelope.WhichOneof("payload") != "encrypted":
        raise BadEnvelope("a message without content")
    if encrypted.sender_public_key not in (b"", peer_key, identity.public_key):
        raise BadEnvelope("the key in the message is not the sender's")
    plain = identity.open(peer_key, encrypted.ciphertext, encrypted.nonce)
    try:
        return PlaintextPayload.FromString(plain)
    except DecodeError:
        raise BadEnvelope("what was encrypted is no message") from None


def _id_of(data: bytes) -> str:
    """An id for what has none of its own: the same bytes have the same."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
