"""Every exception of this package, drawn once.

    Libp2pError
    ├── BadInput            what a caller gave can never be right
    │   ├── BadKey            a key, or a key file, that cannot be used
    │   ├── BadPeerId         no peer id
    │   └── BadMultiaddr      no address, or one of a kind that is not known
    ├── WireError           bytes from the other side that are not what the protocol says
    │   ├── VarintError       a number that does not end, or is not in its shortest form
    │   ├── ProtobufError     no message, or one with too many fields
    │   ├── MultistreamError  no negotiation
    │   ├── NoiseError        a handshake or a frame that does not hold
    │   ├── YamuxError        a frame that breaks the rules of the multiplexer
    │   └── GossipError       a gossip frame that breaks the rules
    ├── LimitReached        one of our own limits
    ├── DialFailed          no address led to that peer
    ├── NotSupported        the other side does not speak the protocol
    ├── ConnectionLost      the connection has ended
    ├── StreamReset         the stream was ended by force, by either side
    └── StreamEnded         the other side finished before all was read

Each class has a stable ``code``, for logs and counters. A time-out is Python's own ``TimeoutError``.
"""

from __future__ import annotations


class Libp2pError(Exception):
    """The root: catching it catches all that this package raises on purpose."""

    code = "libp2p"


class BadInput(Libp2pError):
    """What a caller gave can never be right."""

    code = "bad_input"


class BadKey(BadInput):
    """A key, or a key file, that cannot be used."""

    code = "bad_key"


class BadPeerId(BadInput):
    """No peer id."""

    code = "bad_peer_id"


class BadMultiaddr(BadInput):
    """No address, or one of a kind that is not known."""

    code = "bad_multiaddr"


class WireError(Libp2pError):
    """Bytes from the other side that are not what the protocol says."""

    code = "wire"


class VarintError(WireError):
    """A number that does not end, or is not in its shortest form."""

    code = "varint"


class ProtobufError(WireError):
    """No message, or one with too many fields."""

    code = "protobuf"


class MultistreamError(WireError):
    """No negotiation."""

    code = "multistream"


class NoiseError(WireError):
    """A handshake or a frame that does not hold."""

    code = "noise"


class YamuxError(WireError):
    """A frame that breaks the rules of the multiplexer."""

    code = "yamux"


class GossipError(WireError):
    """A gossip frame that breaks the rules."""

    code = "gossip"


class LimitReached(Libp2pError):
    """One of our own limits."""

    code = "limit"


class DialFailed(Libp2pError):
    """No address led to that peer."""

    code = "dial"


class NotSupported(Libp2pError):
    """The other side does not speak the protocol."""

    code = "not_supported"


class ConnectionLost(Libp2pError):
    """The connection has ended."""

    code = "connection_lost"


class StreamReset(Libp2pError):
    """The stream was ended by force, by either side."""

    code = "reset"


class StreamEnded(Libp2pError):
    """The other side finished before all was read."""

    code = "ended"
