"""What can be set about the relay's sessions; the queue itself (capacity, time to live) is the desk's policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are seconds. The defaults are those of the protocol's facts where it has any."""

    host: str
    """The public host: part of every address, and of what agents sign."""
    desk: str = "relay"

    # Authentication.
    auth_s: float = 10.0
    """How long a connection may take to authenticate; a challenge is good for as long."""
    unauthenticated_max: int = 1_000
    """Connections that have not authenticated yet."""
    connections_max: int = 100_000
    probe_s: float = 2.5
    """How long a connection has to show life when another comes for the same address."""

    # What waited.
    start_pause_s: float = 0.05
    """Between AuthResult and the first queued frame: slow clients install their handlers late."""
    batch: int = 50
    """Frames of a flush that may be unreceived at once."""
    batch_pause_s: float = 0.003
    pages_max: int = 8
    """Pages of bodies that are read at once, over all connections."""

    # Slow readers and fast senders.
    unreceived_frames_max: int = 256
    unreceived_bytes_max: int = 1_048_576
    """What a recipient has not received yet; past either, the rest waits in its mailbox."""
    buffered_bytes_max: int = 1_048_576
    """What the socket has not taken; past it the connection is not read from, so its notices stay bounded."""
    unanswered_max: int = 256
    unanswered_bytes_max: int = 1_048_576
    """Frames of one connection that are not durable yet; past either, it is not read from."""
    unanswered_bytes_total_max: int = 67_108_864
    """The same over all connections."""
    submission_max: int = 500
    """Commands that are handed to the engine as one."""
    receipt_delay_s: float = 0.05
    """How long live frames wait for a confirmation before a ping asks whether they arrived."""

    # Heartbeats.
    heartbeat_s: float = 25.0
    """Silence after which a ping is sent."""
    heartbeat_wait_s: float = 7.0
    """Silence after that ping which ends the connection."""
    pings_per_s: float = 5.0
    ping_burst: int = 50
    """An agent's own pings, and pongs that nobody asked for; past them the connection is closed."""

    # Limits.
    rate_per_s: float = 1.0
    """Frames of one address, all types; confirmations of relayed messages do not count. 0: no limit."""
    rate_burst: int = 10
    blocks_max: int = 10_000
    """Addresses that one agent may block."""
    refusals_noted_per_s: float = 10.0
    """Failed authentications in the journal; all are counted."""
