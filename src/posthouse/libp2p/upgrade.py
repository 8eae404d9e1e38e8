"""From a bare connection to a secured and multiplexed one, without any input or output of its own.

    multistream: /noise ──→ Noise XX ──→ multistream: /yamux/1.0.0 (inside) ──→ done
                                └── both said in the handshake that they speak it ──↑

In: bytes of the other side. Out: bytes for it; then who it is, the channel, and what came already. There is one kind
of security and one multiplexer, so the dialler goes on without waiting for an answer to its proposals.
"""

from __future__ import annotations

import enum

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from . import multistream, noise, yamux
from .key import PrivateKey, PublicKey
from .peer_id import PeerId


class Stage(enum.Enum):
    """How far it is."""

    SECURITY = enum.auto()
    HANDSHAKE = enum.auto()
    MUXER = enum.auto()
    DONE = enum.auto()


class Upgrade:
    """One connection's way up."""

    def __init__(
        self,
        dialler: bool,
        key: PrivateKey,
        static: X25519PrivateKey,
        ephemeral: X25519PrivateKey,
        expected: PeerId | None = None,
    ) -> None:
        """``expected`` is who the other side must be; None takes anybody."""
        self._dialler = dialler
        self.stage = Stage.SECURITY
        self._negotiation = _negotiation(dialler, noise.PROTOCOL)
        self._securing = noise.Securing(dialler, key, [yamux.PROTOCOL], static, ephemeral, expected)
        self._out = bytearray(self._negotiation.take())
        if dialler:
            self._out += self._securing.take()
        self._plain: list[bytes] = []

    def take(self) -> bytes:
        """What is to be sent now."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def receive(self, data: bytes) -> bool:
        """Take bytes; True when it is done. WireError or NotSupported: the connection cannot go on."""
        if self.stage is Stage.SECURITY:
            done = self._negotiation.receive(data)
            self._out += self._negotiation.take()
            if not done:
                return False
            data = self._negotiation.rest
            self.stage = Stage.HANDSHAKE
        if self.stage is Stage.HANDSHAKE:
            done = self._securing.receive(data)
            self._out += self._securing.take()
            if not done:
                return False
            data = b""
            if yamux.PROTOCOL in self._securing.their_muxers:
                self.stage = Stage.DONE
            else:
                self.stage = Stage.MUXER
                self._negotiation = _negotiation(self._dialler, yamux.PROTOCOL)
                self._send_sealed(self._negotiation.take())
        if self.stage is Stage.MUXER:
            for plain in self.channel.open(data):
                if self.stage is Stage.DONE:
                    self._plain.append(plain)
                elif self._negotiation.receive(plain):
                    self.stage = Stage.DONE
                    self._plain.append(self._negotiation.rest)
                self._send_sealed(self._negotiation.take())
        return self.stage is Stage.DONE

    def _send_sealed(self, plain: bytes) -> None:
        if plain:
            self._out += self.channel.seal(plain)

    @property
    def channel(self) -> noise.Channel:
        """Seals and opens all that follows."""
        channel = self._securing.channel
        assert channel is not None
        return channel

    @property
    def peer(self) -> PeerId:
        """Who the other side is."""
        peer = self._securing.peer
        assert peer is not None
        return peer

    @property
    def public_key(self) -> PublicKey:
        """The other side's key."""
        key = self._securing.public_key
        assert key is not None
        return key

    def early(self) -> list[bytes]:
        """What already came for the multiplexer, in order."""
        early = [*self._plain, *self.channel.open(b"")]
        self._plain.clear()
        return [plain for plain in early if plain]


def _negotiation(dialler: bool, protocol: str) -> multistream.Dialler | multistream.Listener:
    if dialler:
        return multistream.Dialler([protocol])
    return multistream.Listener(protocol.__eq__)
