"""Sealed messages: what everybody on a topic may carry, and only one peer can read.

    {"recipient", "sender", "ephemeral_key", "nonce", "ciphertext", "message_id", "trade_id"}

The last three but two are base64. The text is a NaCl box (X25519, XSalsa20, Poly1305) from a key that is made for this
message alone to the recipient's Ed25519 key, turned into one of X25519. So it proves nothing of its sender: whoever
carries it must. Who writes to whom, and of which trade, everybody sees.

In: a message and its recipient, or bytes of others. Out: an envelope as JSON, or the message in it; BadFrame and
InvalidInput say what is wrong. It reads no socket, and takes its randomness from the system.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

from nacl.exceptions import CryptoError
from nacl.public import Box, PublicKey
from nacl.public import PrivateKey as BoxKey
from nacl.signing import SigningKey, VerifyKey
from nacl.utils import random

from ..errors import BadFrame, InvalidInput
from ..libp2p.errors import BadInput
from ..libp2p.key import PrivateKey
from ..libp2p.peer_id import PeerId
from . import frame
from .frame import Direct

KEY_BYTES = 32
NONCE_BYTES = 24
ENVELOPE_BYTES_MAX = 1_000_000
"""As much as gossip carries in one message."""


class Envelope(NamedTuple):
    """A sealed message."""

    recipient: str
    sender: str
    ephemeral_key: bytes
    nonce: bytes
    ciphertext: bytes
    message_id: str
    trade_id: str


def seal(message: Direct, to: PeerId) -> bytes:
    """A message for one peer, as it is published; InvalidInput if it is too large, or nobody can own that key."""
    try:
        key = to.public_key()
        if key is None:
            raise InvalidInput(f"the id of {to} does not tell its key: nothing can be sealed for it")
        public = VerifyKey(key.raw()).to_curve25519_public_key()
    except (BadInput, CryptoError, ValueError) as error:
        raise InvalidInput(f"nothing can be sealed for {to}: {error}") from None
    once, nonce = BoxKey.generate(), random(NONCE_BYTES)
    cipher = Box(once, public).encrypt(frame.dumps(frame.fields(message)), nonce).ciphertext
    data = frame.dumps(
        {
            "recipient": str(to),
            "sender": message.from_peer,
            "ephemeral_key": base64.b64encode(bytes(once.public_key)).decode(),
            "nonce": base64.b64encode(nonce).decode(),
            "ciphertext": base64.b64encode(cipher).decode(),
            "message_id": message.message_id,
            "trade_id": message.trade_id,
        }
    )
    if len(data) > ENVELOPE_BYTES_MAX:
        raise InvalidInput(f"sealed, the message has {len(data)} bytes; gossip carries {ENVELOPE_BYTES_MAX}")
    return data


def parse(data: bytes) -> Envelope:
    """The envelope that somebody published; BadFrame if it is none."""
    if len(data) > ENVELOPE_BYTES_MAX:
        raise BadFrame(f"an envelope of {len(data)} bytes; at most {ENVELOPE_BYTES_MAX} are taken")
    plain = frame.loads(data)
    if not isinstance(plain, dict):
        raise BadFrame("an envelope is a JSON object")
    return Envelope(
        frame.text_of(plain, "recipient"),
        frame.text_of(plain, "sender"),
        _bytes(plain, "ephemeral_key", KEY_BYTES),
        _bytes(plain, "nonce", NONCE_BYTES),
        _bytes(plain, "ciphertext", None),
        frame.text_of(plain, "message_id"),
        frame.text_of(plain, "trade_id"),
    )


def unseal(envelope: Envelope, key: PrivateKey) -> Direct:
    """The message in an envelope for us; BadFrame if it was not sealed for this key, or holds no message."""
    box = Box(SigningKey(key.seed()).to_curve25519_private_key(), PublicKey(envelope.ephemeral_key))
    try:
        plain = box.decrypt(envelope.ciphertext, envelope.nonce)
    except (CryptoError, ValueError):
        raise BadFrame("this was not sealed for us") from None
    return frame.decode(plain)


def _bytes(plain: dict[str, Any], name: str, size: int | None) -> bytes:
    value = plain.get(name)
    if not isinstance(value, str):
        raise BadFrame(f"{name} must be base64")
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise BadFrame(f"{name} is no base64") from None
    if size is not None and len(raw) != size:
        raise BadFrame(f"{name} has {len(raw)} bytes, not {size}")
    return raw
