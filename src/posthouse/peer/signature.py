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
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson

from ..errors import InvalidInput
from ..libp2p.errors import BadInput
from ..libp2p.key import PrivateKey
from ..libp2p.peer_id import PeerId
from .frame import Direct, fields

try:
    from nacl.bindings import crypto_sign, crypto_sign_seed_keypair
except ModuleNotFoundError:
    HAS_SODIUM = False
else:
    HAS_SODIUM = True

DOMAIN = b"posthouse-direct-v1"
_HEAD = DOMAIN + b"\0"
_SIGNATURE_BYTES = 64
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def canonical(message: Direct) -> bytes:
    """What is signed; InvalidInput if there is no such form."""
    return _HEAD + _body(message)


def _body(message: Direct) -> bytes:
    check_signable(message.payload)
    plain = fields(message)
    plain.pop("signature", None)
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass  # a larger number, or something that only the other one writes
    try:
        return _ENCODER.encode(plain).encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text holds half of a surrogate pair") from None


def check_signable(payload: Any) -> None:
    """InvalidInput if a payload has no canonical form."""
    if _has_fraction(payload):
        raise InvalidInput("a payload with a fraction cannot be signed: write whole numbers or texts")


def sign(message: Direct, key: PrivateKey) -> Direct:
    """The message with its signature."""
    return write(message, key)[0]


def write(message: Direct, key: PrivateKey) -> tuple[Direct, bytes]:
    """The same, and the signed message as JSON: what was signed, and behind it the signature."""
    body = _body(message)
    signature = base64.b64encode(_signer(key)(_HEAD + body))
    return message._replace(signature=signature.decode()), b'%b,"signature":"%b"}' % (body[:-1], signature)


@lru_cache(maxsize=16)
def _signer(key: PrivateKey) -> Callable[[bytes], bytes]:
    """What signs with this key: libsodium, which takes a fifth of the time, where there is one."""
    if not HAS_SODIUM:
        return key.sign
    _, secret = crypto_sign_seed_keypair(key.seed())
    return lambda data: crypto_sign(data, secret)[:_SIGNATURE_BYTES]


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
