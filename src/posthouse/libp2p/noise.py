"""Noise XX as libp2p uses it (Noise_XX_25519_ChaChaPoly_SHA256): who the other side is, and secret frames.

    initiator  ── e ─────────────────────→   responder
               ←── e, ee, s, es, payload ──
               ── s, se, payload ─────────→

In: bytes of the other side. Out: bytes for it; then the other side's identity and a channel that seals and opens
frames. A payload holds the sender's public key and its signature of the Noise key, so that nobody can stand between;
and the multiplexers that it speaks. Nothing here reads a socket, a clock or randomness: keys are arguments. There is
no way around it: a connection that is not secured this way does not exist.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from . import protobuf
from .errors import BadKey, NoiseError, ProtobufError
from .key import PrivateKey, PublicKey
from .peer_id import PeerId

PROTOCOL = "/noise"
NAME = b"Noise_XX_25519_ChaChaPoly_SHA256"
FRAME_BYTES_MAX = 65_535
"""Of a sealed frame, behind its two bytes of length."""
TAG_BYTES = 16
PLAIN_BYTES_MAX = FRAME_BYTES_MAX - TAG_BYTES
PAYLOAD_BYTES_MAX = 8_192
MUXERS_MAX = 32
NONCES_MAX = (1 << 64) - 2
_SIGNED = b"noise-libp2p-static-key:"


class _Cipher:
    """One direction: each frame has the next number."""

    __slots__ = ("_aead", "_count")

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = 0

    def seal(self, plain: bytes | memoryview, also: bytes | None = None) -> bytes:
        return self._aead.encrypt(self._nonce(), plain, also)

    def open(self, sealed: bytes | memoryview, also: bytes | None = None) -> bytes:
        try:
            return self._aead.decrypt(self._nonce(), sealed, also)
        except InvalidTag:
            raise NoiseError("a frame was not sealed by the other side, or not in this order") from None

    def _nonce(self) -> bytes:
        count = self._count
        if count > NONCES_MAX:
            raise NoiseError("this connection has sealed all the frames that it may")
        self._count = count + 1
        return b"\0\0\0\0" + count.to_bytes(8, "little")


class Handshake:
    """The XX pattern itself, message by message, as the Noise specification has it."""

    def __init__(
        self, initiator: bool, static: X25519PrivateKey, ephemeral: X25519PrivateKey, prologue: bytes = b""
    ) -> None:
        self._initiator = initiator
        self._static = static
        self._ephemeral = ephemeral
        self._their_ephemeral: X25519PublicKey | None = None
        self.their_static: X25519PublicKey | None = None
        """The other side's Noise key, once it has come."""
        self._messages = 0
        self._chain = self.hash = NAME
        """After the last message, ``hash`` names the connection."""
        self._cipher: _Cipher | None = None
        self._mix(prologue)

    def write(self, payload: bytes = b"") -> bytes:
        """Our next message."""
        out = bytearray()
        number = self._begin(ours=True)
        if number < 2:
            public = self._ephemeral.public_key().public_bytes_raw()
            self._mix(public)
            out += public
        if number == 1:
            self._agree(self._ephemeral, self._their_ephemeral)
        if number > 0:
            out += self._seal(self._static.public_key().public_bytes_raw())
            self._agree(self._static, self._their_ephemeral)
        out += self._seal(payload)
        return bytes(out)

    def read(self, message: bytes) -> bytes:
        """The other side's next message; its payload."""
        number = self._begin(ours=False)
        if number < 2:
            if len(message) < 32:
                raise NoiseError("a handshake message is cut off")
            self._mix(message[:32])
            self._their_ephemeral = X25519PublicKey.from_public_bytes(message[:32])
            message = message[32:]
        if number == 1:
            self._agree(self._ephemeral, self._their_ephemeral)
        if number > 0:
            if len(message) < 48:
                raise NoiseError("a handshake message is cut off")
            self.their_static = X25519PublicKey.from_public_bytes(self._open(message[:48]))
            message = message[48:]
            self._agree(self._ephemeral, self.their_static)
        return self._open(message)

    def split(self) -> tuple[_Cipher, _Cipher]:
        """After the third message: the ciphers for what we send and for what we get."""
        assert self._messages == 3
        first, second = _derive(self._chain, b"")
        ciphers = _Cipher(first), _Cipher(second)
        return ciphers if self._initiator else (ciphers[1], ciphers[0])

    def _begin(self, ours: bool) -> int:
        number = self._messages
        assert number < 3
        assert ours == ((number % 2 == 0) == self._initiator)
        self._messages += 1
        return number

    def _mix(self, data: bytes) -> None:
        self.hash = hashlib.sha256(self.hash + data).digest()

    def _agree(self, mine: X25519PrivateKey, theirs: X25519PublicKey | None) -> None:
        assert theirs is not None
        try:
            shared = mine.exchange(theirs)
        except ValueError:
            raise NoiseError("nobody can own the other side's key") from None
        self._chain, key = _derive(self._chain, shared)
        self._cipher = _Cipher(key)

    def _seal(self, plain: bytes) -> bytes:
        sealed = plain if self._cipher is None else self._cipher.seal(plain, self.hash)
        self._mix(sealed)
        return sealed

    def _open(self, sealed: bytes) -> bytes:
        plain = sealed if self._cipher is None else self._cipher.open(sealed, self.hash)
        self._mix(sealed)
        return plain


def _derive(chain: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """Two keys from the chain and a secret (HKDF)."""
    root = hmac.digest(chain, secret, "sha256")
    first = hmac.digest(root, b"\x01", "sha256")
    return first, hmac.digest(root, first + b"\x02", "sha256")


class Channel:
    """After the handshake: plain bytes to frames and back, in order."""

    __slots__ = ("_get", "_put", "_rest")

    def __init__(self, put: _Cipher, get: _Cipher, rest: bytes) -> None:
        self._put = put
        self._get = get
        self._rest = bytearray(rest)

    def seal(self, plain: bytes) -> bytes:
        """Frames that carry the bytes."""
        size = len(plain)
        if size <= PLAIN_BYTES_MAX:
            return (size + TAG_BYTES).to_bytes(2, "big") + self._put.seal(plain)
        view, out = memoryview(plain), bytearray()
        for at in range(0, size, PLAIN_BYTES_MAX):
            sealed = self._put.seal(view[at : at + PLAIN_BYTES_MAX])
            out += len(sealed).to_bytes(2, "big") + sealed
        return bytes(out)

    def open(self, data: bytes) -> list[bytes]:
        """What the whole frames in the bytes carry; a frame that is cut off waits for its rest."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < 2 or len(rest) < 2 + (rest[0] << 8 | rest[1]):
                return []
            data = bytes(rest)
            rest.clear()
        at, end = 0, len(data)
        if end - 2 >= TAG_BYTES and data[0] << 8 | data[1] == end - 2:
            # One whole frame, as it is nearly always.
            only = self._get.open(data[2:])
            return [only] if only else []
        plain: list[bytes] = []
        view = memoryview(data)
        while end - at >= 2:
            size = data[at] << 8 | data[at + 1]
            if size < TAG_BYTES:
                raise NoiseError(f"a frame of {size} bytes is too short to be sealed")
            if end - at - 2 < size:
                break
            opened = self._get.open(view[at + 2 : at + 2 + size])
            if opened:
                plain.append(opened)
            at += 2 + size
        if at < end:
            rest += view[at:]
        return plain


class Securing:
    """The handshake with its frames and payloads: from the first byte to a channel and an identity."""

    def __init__(
        self,
        initiator: bool,
        key: PrivateKey,
        muxers: Sequence[str],
        static: X25519PrivateKey,
        ephemeral: X25519PrivateKey,
        expected: PeerId | None = None,
    ) -> None:
        """``expected`` is who the other side must be; None takes anybody."""
        self._initiator = initiator
        self._handshake = Handshake(initiator, static, ephemeral)
        self._key = key
        self._muxers = muxers
        self._static = static
        self._expected = expected
        self._buffer = bytearray()
        self._stage = 0
        self.outgoing = bytearray()
        """What is to be sent; the caller takes it."""
        self.peer: PeerId | None = None
        self.public_key: PublicKey | None = None
        self.their_muxers: list[str] = []
        """What the other side speaks, if it said so."""
        self.channel: Channel | None = None
        """When the handshake is done."""
        if initiator:
            self._send(b"")

    def take(self) -> bytes:
        """What is to be sent now."""
        out = bytes(self.outgoing)
        self.outgoing.clear()
        return out

    def receive(self, data: bytes) -> bool:
        """Take bytes; True when the channel is there. What came behind the handshake is kept in the channel."""
        self._buffer += data
        while self.channel is None and len(self._buffer) >= 2:
            size = int.from_bytes(self._buffer[:2], "big")
            if size > PAYLOAD_BYTES_MAX:
                raise NoiseError(f"a handshake message of {size} bytes; at most {PAYLOAD_BYTES_MAX} are taken")
            if len(self._buffer) < 2 + size:
                break
            message = bytes(self._buffer[2 : 2 + size])
            del self._buffer[: 2 + size]
            self._message(message)
        return self.channel is not None

    def _message(self, message: bytes) -> None:
        payload = self._handshake.read(message)
        stage, self._stage = self._stage, self._stage + 1
        if self._initiator:
            self._identify(payload)
            self._send(self._payload())
            self._finish()
        elif stage == 0:
            self._send(self._payload())
        else:
            self._identify(payload)
            self._finish()

    def _send(self, payload: bytes) -> None:
        message = self._handshake.write(payload)
        self.outgoing += len(message).to_bytes(2, "big") + message

    def _finish(self) -> None:
        put, get = self._handshake.split()
        self.channel = Channel(put, get, bytes(self._buffer))
        self._buffer.clear()

    def _payload(self) -> bytes:
        signature = self._key.sign(_SIGNED + self._static.public_key().public_bytes_raw())
        extensions = b"".join(protobuf.text_field(2, muxer) for muxer in self._muxers)
        return (
            protobuf.bytes_field(1, self._key.public.encoded)
            + protobuf.bytes_field(2, signature)
            + protobuf.bytes_field(4, extensions)
        )

    def _identify(self, payload: bytes) -> None:
        """Who sent this payload; NoiseError if it is not proven, or not who it must be."""
        key = signature = b""
        budget = protobuf.Budget(2 * MUXERS_MAX)
        try:
            for field, value in protobuf.fields(payload, budget):
                if field == 1:
                    key = protobuf.octets(value)
                elif field == 2:
                    signature = protobuf.octets(value)
                elif field == 4:
                    inner = protobuf.fields(protobuf.octets(value), budget)
                    self.their_muxers = [protobuf.text(value) for field, value in inner if field == 2]
            public = PublicKey.from_bytes(key)
        except (ProtobufError, BadKey) as error:
            raise NoiseError(f"the other side does not say who it is: {error}") from None
        static = self._handshake.their_static
        assert static is not None
        if not public.verifies(signature, _SIGNED + static.public_bytes_raw()):
            raise NoiseError("the other side is not who it says it is")
        peer = PeerId.of(public)
        if self._expected is not None and peer != self._expected:
            raise NoiseError(f"it is {peer} who answers, not {self._expected}")
        self.peer, self.public_key = peer, public
