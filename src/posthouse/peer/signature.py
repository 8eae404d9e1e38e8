"""Signatures: a message signed by its sender's peer key, in a field that nodes which know none pass over.

The signed bytes are ``DOMAIN``, a zero byte, and the message object without ``signature`` in its canonical form: keys
sorted by code points, no spaces, texts as they are in UTF-8 with only the escapes that JSON demands, whole numbers in
decimal. A fraction has no canonical form, so a payload that holds one cannot be signed: write amounts as whole numbers
or texts. The signature is Ed25519, in base64.

In: a message, a key. Out: the same message signed, or whether its sender signed it. It never decides whether a
signature is needed.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from ..errors import InvalidInput
from ..libp2p.errors import BadInput
from ..libp2p.key import PrivateKey
from ..libp2p.peer_id import PeerId
from .frame import Direct, fields

DOMAIN = b"posthouse-direct-v1"
_SIGNATURE_BYTES = 64


def canonical(message: Direct) -> bytes:
    """What is signed; InvalidInput if there is no such form."""
    plain = fields(message._replace(signature=""))
    if _has_fraction(plain["payload"]):
        raise InvalidInput("a payload with a fraction cannot be signed: write whole numbers or texts")
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    try:
        return DOMAIN + b"\0" + text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text holds half of a surrogate pair") from None


def sign(message: Direct, key: PrivateKey) -> Direct:
    """The message with its signature."""
    return message._replace(signature=base64.b64encode(key.sign(canonical(message))).decode())


def is_signed_by(message: Direct, sender: str) -> bool:
    """Whether the message carries a signature of this peer."""
    try:
        raw = base64.b64decode(message.signature, validate=True)
        key = PeerId.parse(sender).public_key()
        if key is None or len(raw) != _SIGNATURE_BYTES:
            return False
        return key.verifies(raw, canonical(message))
    except (binascii.Error, ValueError, BadInput, InvalidInput):
        return False


def _has_fraction(value: Any) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, float):
            return True
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return False
