"""Envelopes: one is one binary WebSocket message.

In: bytes from a socket, or the values of a frame. Out: a parsed Envelope, or the bytes to send.
It never decides whether a frame is allowed, and keeps nothing.
"""

from __future__ import annotations

import enum
import hashlib

from google.protobuf.message import DecodeError

from ..errors import BadEnvelope
from ._pb import pinch_pb2 as pb
from ._pb.pinch_pb2 import Envelope, PlaintextPayload

__all__ = [
    "AUTH_BYTES_MAX",
    "ENVELOPE_BYTES_MAX",
    "FRAME_BYTES_MAX",
    "RELAY_ONLY",
    "VERSION",
    "Envelope",
    "MessageType",
    "PlaintextPayload",
    "auth_challenge",
    "auth_response",
    "auth_result",
    "block_notification",
    "connection_request",
    "connection_response",
    "delivery_confirm",
    "encrypted_message",
    "id_text",
    "is_disguised",
    "kind_of",
    "parse",
    "queue_full",
    "queue_status",
    "rate_limited",
    "unblock_notification",
    "with_was_stored",
]

VERSION = 1
ENVELOPE_BYTES_MAX = 65_536
"""The largest envelope that is routed."""
FRAME_BYTES_MAX = 131_072
"""The largest frame that is read at all."""
AUTH_BYTES_MAX = 32_768
"""The largest frame before authentication."""

_ID_CHARACTERS_MAX = 128
_RESERVED = ("hex:", "sha256:", "confirm:", "relay:")


class MessageType(enum.IntEnum):
    """What an envelope is; numbers that are not listed are routed too."""

    UNSPECIFIED = 0
    HANDSHAKE = 1
    AUTH_CHALLENGE = 2
    AUTH_RESPONSE = 3
    MESSAGE = 4
    DELIVERY_CONFIRM = 5
    CONNECTION_REQUEST = 6
    CONNECTION_RESPONSE = 7
    HEARTBEAT = 8
    AUTH_RESULT = 9
    CONNECTION_REVOKE = 10
    BLOCK_NOTIFICATION = 11
    UNBLOCK_NOTIFICATION = 12
    QUEUE_STATUS = 13
    QUEUE_FULL = 14
    RATE_LIMITED = 15


RELAY_ONLY = frozenset(
    {
        MessageType.AUTH_CHALLENGE,
        MessageType.AUTH_RESPONSE,
        MessageType.AUTH_RESULT,
        MessageType.QUEUE_STATUS,
        MessageType.QUEUE_FULL,
        MessageType.RATE_LIMITED,
    }
)
"""Types between an agent and the relay itself: from an agent to an agent they would be forged."""

_RELAYS_OWN = {
    member.name.lower(): int(member)
    for member in (
        *RELAY_ONLY,
        MessageType.DELIVERY_CONFIRM,
        MessageType.BLOCK_NOTIFICATION,
        MessageType.UNBLOCK_NOTIFICATION,
    )
}
_KINDS = {int(member): member.name.lower() for member in MessageType}
_from_string = Envelope.FromString


def parse(data: bytes) -> Envelope:
    """The envelope in a frame; BadEnvelope if there is none."""
    if not data:
        raise BadEnvelope("an empty frame is no envelope")
    try:
        return _from_string(data)
    except DecodeError:
        raise BadEnvelope("these bytes are no envelope") from None


def is_disguised(envelope: Envelope) -> bool:
    """Whether its payload is one that a relay speaks or acts upon, and its type another: so it would pass it by."""
    return _RELAYS_OWN.get(envelope.WhichOneof("payload") or "", envelope.type) != envelope.type


def kind_of(type: int) -> str:
    """The type's word in the journal; ``type_99`` for one that has no name."""
    return _KINDS.get(type) or f"type_{type}"


def id_text(message_id: bytes) -> str:
    """The engine's id for a message id: its text where it is one, else hex, else a hash; '' for none.

    Two different ids never have the same text.
    """
    if len(message_id) <= _ID_CHARACTERS_MAX and message_id.isascii():
        text = message_id.decode("ascii")
        if text.isprintable() and not text.startswith(_RESERVED):
            return text
    if len(message_id) <= _ID_CHARACTERS_MAX // 2:
        return f"hex:{message_id.hex()}"
    return f"sha256:{hashlib.sha256(message_id).hexdigest()}"


def with_was_stored(data: bytes) -> bytes:
    """The same confirmation, marked by the relay: the message waited in its store. The signature still holds."""
    envelope = parse(data)
    if envelope.WhichOneof("payload") != "delivery_confirm":
        raise BadEnvelope("not a delivery confirmation")
    envelope.delivery_confirm.was_stored = True
    return envelope.SerializeToString()


# What the relay says.


def auth_challenge(relay_host: str, nonce: bytes, issued_at_ms: int, expires_at_ms: int) -> bytes:
    """The relay's first word on a connection."""
    return Envelope(
        version=VERSION,
        type=pb.MESSAGE_TYPE_AUTH_CHALLENGE,
        timestamp=issued_at_ms,
        auth_challenge=pb.AuthChallenge(
            version=VERSION,
            nonce=nonce,
            issued_at_ms=issued_at_ms,
            expires_at_ms=expires_at_ms,
            relay_host=relay_host,
        ),
    ).SerializeToString()


def auth_result(success: bool, error_message: str = "", assigned_address: str = "") -> bytes:
    """Whether the agent is admitted: its address, or why not."""
    return Envelope(
        version=VERSION,
        type=pb.MESSAGE_TYPE_AUTH_RESULT,
        auth_result=pb.AuthResult(success=success, error_message=error_message, assigned_address=assigned_address),
    ).SerializeToString()


def queue_status(pending_count: int) -> bytes:
    """How many queued envelopes follow."""
    return Envelope(
        version=VERSION, type=pb.MESSAGE_TYPE_QUEUE_STATUS, queue_status=pb.QueueStatus(pending_count=pending_count)
    ).SerializeToString()


def queue_full(recipient: str, reason: str, message_id: bytes) -> bytes:
    """The recipient's queue took this message not."""
    return Envelope(
        version=VERSION,
        type=pb.MESSAGE_TYPE_QUEUE_FULL,
        message_id=message_id,
        queue_full=pb.QueueFull(recipient_address=recipient, reason=reason),
    ).SerializeToString()


def rate_limited(retry_after_ms: int, reason: str) -> bytes:
    """A frame was discarded; when to try again."""
    return Envelope(
        version=VERSION,
        type=pb.MESSAGE_TYPE_RATE_LIMITED,
        rate_limited=pb.RateLimited(retry_after_ms=retry_after_ms, reason=reason),
    ).SerializeToString()


# What agents say.


def auth_response(public_key: bytes, signature: bytes, nonce: bytes) -> bytes:
    """The answer to a challenge."""
    return Envelope(
        version=VERSION,
        type=pb.MESSAGE_TYPE_AUTH_RESPONSE,
        auth_response=pb.AuthResponse(version=VERSION, public_key=public_key, signature=signature, nonce=nonce),
    ).SerializeToString()


def encrypted_message(
    sender: str,
    recipient: str,
    message_id: bytes,
    timestamp_ms: int,
    nonce: bytes,
    ciphertext: bytes,
    sender_public_key: bytes,
) -> bytes:
    """A MESSAGE that only its recipient can read."""
    return Envelope(
        version=VERSION,
        from_address=sender,
        to_address=recipient,
        type=pb.MESSAGE_TYPE_MESSAGE,
        message_id=message_id,
        timestamp=timestamp_ms,
        encrypted=pb.EncryptedPayload(nonce=nonce, ciphertext=ciphertext, sender_public_key=sender_public_key),
    ).SerializeToString()


def delivery_confirm(sender: str, recipient: str, message_id: bytes, timestamp_ms: int, signature: bytes) -> bytes:
    """The recipient of a message confirms it to whom it came from; no id of its own."""
    return Envelope(
        version=VERSION,
        from_address=sender,
        to_address=recipient,
        type=pb.MESSAGE_TYPE_DELIVERY_CONFIRM,
        timestamp=timestamp_ms,
        delivery_confirm=pb.DeliveryConfirm(
            message_id=message_id, signature=signature, timestamp=timestamp_ms, state="delivered"
        ),
    ).SerializeToString()


def connection_request(
    sender: str,
    recipient: str,
    message_id: bytes,
    timestamp_ms: int,
    message: str,
    sender_public_key: bytes,
    expires_at_s: int,
) -> bytes:
    """One agent asks another whether they may write to each other."""
    return Envelope(
        version=VERSION,
        from_address=sender,
        to_address=recipient,
        type=pb.MESSAGE_TYPE_CONNECTION_REQUEST,
        message_id=message_id,
        timestamp=timestamp_ms,
        connection_request=pb.ConnectionRequest(
            from_address=sender,
            to_address=recipient,
            message=message,
            sender_public_key=sender_public_key,
            expires_at=expires_at_s,
        ),
    ).SerializeToString()


def connection_response(
    sender: str, recipient: str, message_id: bytes, timestamp_ms: int, accepted: bool, responder_public_key: bytes
) -> bytes:
    """The answer to such a question."""
    return Envelope(
        version=VERSION,
        from_address=sender,
        to_address=recipient,
        type=pb.MESSAGE_TYPE_CONNECTION_RESPONSE,
        message_id=message_id,
        timestamp=timestamp_ms,
        connection_response=pb.ConnectionResponse(
            from_address=sender, to_address=recipient, accepted=accepted, responder_public_key=responder_public_key
        ),
    ).SerializeToString()


def block_notification(blocker: str, blocked: str, timestamp_ms: int) -> bytes:
    """Tell the relay to carry nothing from ``blocked`` to ``blocker``."""
    return Envelope(
        version=VERSION,
        from_address=blocker,
        type=pb.MESSAGE_TYPE_BLOCK_NOTIFICATION,
        timestamp=timestamp_ms,
        block_notification=pb.BlockNotification(blocker_address=blocker, blocked_address=blocked),
    ).SerializeToString()


def unblock_notification(unblocker: str, unblocked: str, timestamp_ms: int) -> bytes:
    """Undo it."""
    return Envelope(
        version=VERSION,
        from_address=unblocker,
        type=pb.MESSAGE_TYPE_UNBLOCK_NOTIFICATION,
        timestamp=timestamp_ms,
        unblock_notification=pb.UnblockNotification(unblocker_address=unblocker, unblocked_address=unblocked),
    ).SerializeToString()
