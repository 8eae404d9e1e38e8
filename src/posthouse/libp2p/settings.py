"""Every limit and every time of a host, in one place. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import BadInput
from .multiaddr import Multiaddr
from .yamux import Bounds


@dataclass(frozen=True, slots=True)
class Settings:
    """What a host allows itself and others."""

    agent: str = "asyncio-libp2p/0.1"
    """What we call ourselves towards others (identify)."""
    announce: tuple[str, ...] = ()
    """Addresses to tell others instead of those that we listen on."""

    # Connections.
    connections_max: int = 256
    inbound_max: int = 192
    """Of those, how many may have been dialled by others."""
    per_peer_max: int = 8
    pending_max: int = 64
    """Inbound connections that have not shown who they are yet; more are closed at once."""
    dials_max: int = 64
    """Peers that are dialled at once."""
    handshake_s: float = 10.0
    """From the bare connection to the multiplexer, in either direction."""
    dial_s: float = 15.0
    """For all addresses of a peer together."""
    dial_stagger_s: float = 0.25
    """Between the tries of a peer's addresses."""
    backlog: int = 128
    """Connections that the system holds until we take them."""

    # Streams.
    bounds: Bounds = field(default_factory=Bounds)
    """Windows and numbers of streams, for each connection."""
    streams_per_protocol_max: int = 64
    """Streams of one protocol that a connection's other side may have open; more are reset."""
    negotiate_s: float = 10.0
    """How long a new stream may take to agree on its protocol."""
    linger_s: float = 30.0
    """How long a stream that we closed waits for the other side to close it too."""

    # Life.
    keepalive_s: float = 12.0
    """Silence after which the other side is asked for a sign of life."""
    keepalive_wait_s: float = 10.0
    """Silence after that which ends the connection."""
    tick_s: float = 2.0
    """How often a connection looks at its times."""
    close_s: float = 2.0
    """How long a connection may take to close."""

    # Memory.
    write_high_bytes: int = 262_144
    """What a socket has not taken yet; past it, whoever writes waits."""
    unread_bytes_max: int = 134_217_728
    """What all streams of all connections hold unread; the stream that brings more is reset."""
    output_bytes_max: int = 4_194_304
    """The same with what we must answer; past it, the connection is closed."""

    # What we know of others.
    identify_s: float = 10.0
    identify_bytes_max: int = 65_536
    protocols_known_max: int = 512
    """Of one peer."""
    addresses_known_max: int = 16
    """Of one peer."""
    peers_known_max: int = 1_024
    """Peers whose addresses are remembered; the one that was heard of longest ago is forgotten first."""

    # Peers that are kept connected.
    keep_first_s: float = 1.0
    """After a failed dial; it doubles up to ``keep_most_s``. Each wait is shortened by chance, against stampedes."""
    keep_most_s: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int | float) and value <= 0:
                raise BadInput(f"{name} is greater than 0, not {value}")
        if self.inbound_max > self.connections_max:
            raise BadInput(f"inbound_max is at most connections_max ({self.connections_max}), not {self.inbound_max}")
        for text in self.announce:
            Multiaddr.parse(text)
