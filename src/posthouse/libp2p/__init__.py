"""A small libp2p for asyncio: TCP, Noise, yamux, identify, ping; gossip and mDNS stand in modules of their own.

async with Host(PrivateKey.generate()) as host:
    host.handle("/hello/1", serve)
    await host.listen("/ip4/127.0.0.1/tcp/4001")
    stream = await host.open_stream(peer, "/hello/1")
"""

from __future__ import annotations

from .errors import (
    BadInput,
    ConnectionLost,
    DialFailed,
    Libp2pError,
    LimitReached,
    NotSupported,
    StreamEnded,
    StreamReset,
    WireError,
)
from .host import Connected, Disconnected, Event, Host, Identified
from .keeper import Keeper
from .key import PrivateKey, PublicKey
from .multiaddr import Multiaddr
from .peer_id import PeerId
from .settings import Settings
from .stream import Stream
from .yamux import Bounds

__all__ = [
    "BadInput",
    "Bounds",
    "Connected",
    "ConnectionLost",
    "DialFailed",
    "Disconnected",
    "Event",
    "Host",
    "Identified",
    "Keeper",
    "Libp2pError",
    "LimitReached",
    "Multiaddr",
    "NotSupported",
    "PeerId",
    "PrivateKey",
    "PublicKey",
    "Settings",
    "Stream",
    "StreamEnded",
    "StreamReset",
    "WireError",
]
