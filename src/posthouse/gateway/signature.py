"""Signatures of webhooks as Standard Webhooks 1.0 says: who knows the key sent it, and not long ago.

In: keys, an id, an instant, a body; or the headers that came with a body. Out: headers to send; or the id that was
signed, and BadSignature if it was not. A key is never shown: its text form says nothing of it.

Three headers carry it: ``webhook-id``, ``webhook-timestamp`` (seconds since 1970) and ``webhook-signature``, a list of
``v1,<base64>`` parted by blanks. What is signed with HMAC-SHA256 is ``id.timestamp.body``. Several keys at once are for
changing from one to the next: all sign, and any of them is taken.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from ..errors import BadSignature, ConfigError

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
PREFIX = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX = 24, 64
TOLERANCE_S = 300.0
"""How far the sender's clock may be from ours."""
SIGNATURES_MAX = 16
"""Signatures of one body that are looked at."""
_ID = re.compile(r"[!-~]{1,256}")
_SECONDS = re.compile(r"[0-9]{1,11}")


class Key:
    """A shared key, from text such as ``whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw``."""

    def __init__(self, text: str) -> None:
        try:
            raw = base64.b64decode(text.strip().removeprefix(PREFIX), validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        if not KEY_BYTES_MIN <= len(raw) <= KEY_BYTES_MAX:
            raise ConfigError(
                f"a webhook key is {PREFIX} and the base64 of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes"
            )
        self._raw = raw

    def __repr__(self) -> str:
        return "<Key (hidden)>"

    def sign(self, id: str, at_s: int, body: bytes) -> bytes:
        """The 32 bytes that prove it."""
        return hmac.digest(self._raw, b"%s.%d.%s" % (id.encode(), at_s, body), hashlib.sha256)


def signed(keys: Sequence[Key], id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers to send with a body."""
    if not _ID.fullmatch(id) or "." in id:
        raise ValueError(f"an id that can be signed is printable ASCII without a full stop: {id[:40]!r}")
    marks = (base64.b64encode(key.sign(id, at_s, body)).decode() for key in keys)
    return {ID: id, TIMESTAMP: str(at_s), SIGNATURE: " ".join(f"v1,{mark}" for mark in marks)}


def verified(
    keys: Sequence[Key], headers: Mapping[str, str], body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S
) -> str:
    """The id under which a body was signed with one of the keys, not long ago; else BadSignature."""
    lower = {name.lower(): value for name, value in headers.items()}
    id, stamp, marks = lower.get(ID, ""), lower.get(TIMESTAMP, ""), lower.get(SIGNATURE, "")
    if not id or not stamp or not marks:
        raise BadSignature(f"the headers {ID}, {TIMESTAMP} and {SIGNATURE} must all be there")
    if not _ID.fullmatch(id) or not _SECONDS.fullmatch(stamp):
        raise BadSignature(f"{ID} or {TIMESTAMP} is not what it should be")
    at_s = int(stamp)
    if abs(now_s - at_s) > tolerance_s:
        raise BadSignature("it was signed too long ago, or a clock is wrong")
    given = [mark.removeprefix("v1,") for mark in marks.split()[:SIGNATURES_MAX] if mark.startswith("v1,")]
    # Every pair is compared, so that the time taken tells nothing.
    good = [_same(key.sign(id, at_s, body), mark) for key in keys for mark in given]
    if not any(good):
        raise BadSignature("no signature is by a key that is known here")
    return id


def _same(wanted: bytes, mark: str) -> bool:
    try:
        return hmac.compare_digest(wanted, base64.b64decode(mark, validate=True))
    except (ValueError, binascii.Error):
        return False
