"""One connection of one agent, from the challenge to the end.

In: what happens on its socket, told by the server: opened, a frame, a ping, a pong, writable, lost. Out: calls
on its line, and commands for the engine. It touches no socket, no clock and no loop: the server gives it a
line, the house everything else.

    challenged ──right answer──▶ (probing another of the same address) ──▶ admitted ──▶ ended
         └──────── wrong, late, refused ────────────────────────────────────────────────▲

When the relay stops, an admitted connection is leaving before it is ended: nothing more goes out, but what the agent
sent before it heard of that is taken.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..wire.address import address_of
from ..wire.envelope import AUTH_BYTES_MAX, ENVELOPE_BYTES_MAX, auth_result
from .auth import FAILED, Challenge
from .inflow import Inflow
from .limits import Bucket
from .outflow import Outflow
from .port import Line

if TYPE_CHECKING:
    from .house import House

POLICY_VIOLATION = 1008
TOO_LARGE = 1009
GOING_AWAY = 1001
TRY_AGAIN_LATER = 1013
"""The close codes that the relay uses; protocol/relay.md says with which reasons."""

AUTH_TIMEOUT = "authentication timeout"
ALREADY_CONNECTED = "address already connected"
HEARTBEAT_TIMEOUT = "heartbeat timeout"
PING_FLOOD = "too many pings"
REPLACED = "replaced by a newer connection"
STORE_UNAVAILABLE = "store unavailable"
SHUTTING_DOWN = "relay is shutting down"
ENVELOPE_TOO_LARGE = f"envelope exceeds {ENVELOPE_BYTES_MAX} bytes"
AUTH_FRAME_TOO_LARGE = f"frame exceeds {AUTH_BYTES_MAX} bytes before authentication"


class Life(enum.Enum):
    """Where a connection is in its life."""

    NEW = "new"
    CHALLENGED = "challenged"
    PROBING = "probing"
    ADMITTED = "admitted"
    LEAVING = "leaving"
    ENDED = "ended"


class Session:
    """One connection. The server calls it; all calls are on one thread."""

    __slots__ = (
        "_challenge", "_house", "_inflow", "_pings", "address", "holder", "life", "line", "outflow", "probed",
        "seen_at", "token",
    )  # fmt: skip

    def __init__(self, house: House, line: Line, token: str, holder: str, now: float) -> None:
        self._house = house
        self.line = line
        self.token = token
        """Names this connection's leases."""
        self.holder = holder
        """Names this connection in the journal."""
        self.address = ""
        """The agent's address; '' until it has proved its key."""
        self.life = Life.NEW
        self.seen_at = now
        """When the agent last gave a sign of life."""
        self.probed = False
        """Whether another connection waits to see whether this one lives."""
        self._challenge: Challenge | None = None
        self._pings: Bucket | None = None
        # Made when they are needed: a connection that never authenticates costs little.
        self.outflow: Outflow
        self._inflow: Inflow

    # What the server tells.

    def opened(self) -> None:
        """The line can be written to: the relay speaks first."""
        if self.life is Life.NEW:
            port, settings = self._house.port, self._house.settings
            now_ms = port.now_ms()
            expires_at_ms = now_ms + int(settings.auth_s * 1000)
            self._challenge = Challenge(settings.host, port.random_bytes(32), now_ms, expires_at_ms)
            self.life = Life.CHALLENGED
            self.line.send(self._challenge.frame())

    def frame(self, data: bytes, binary: bool = True) -> None:
        """A whole message came; once authenticated, text is as good as binary."""
        now = self._house.port.monotonic()
        self.seen_at = now
        if self.life is Life.ADMITTED:
            if self.probed:
                self._house.takeovers.stirs(self)
            self._inflow.frame(data, now)
        elif self.life is Life.CHALLENGED:
            self._authenticate(data, binary)
        elif self.life is Life.LEAVING:
            self._inflow.frame(data, now)
        elif self.life is Life.PROBING:
            # Nobody speaks before the answer to its answer.
            self.refuse(FAILED)

    def pong(self, payload: bytes) -> None:
        """A pong came."""
        self.seen_at = self._house.port.monotonic()
        asked_for = self.life in (Life.ADMITTED, Life.LEAVING) and self.outflow.ponged(payload)
        if self.probed:
            self._house.takeovers.stirs(self, int.from_bytes(payload, "big") if asked_for else 0)
        if not asked_for:
            self._count_ping()

    def ping_seen(self) -> None:
        """A ping came; the server answers it itself."""
        self.seen_at = self._house.port.monotonic()
        if self.probed:
            self._house.takeovers.stirs(self)
        self._count_ping()

    def writable(self) -> None:
        """The line's buffer has room again."""
        if self.life is Life.ADMITTED:
            self._inflow.resume()

    def oversize(self, size_bytes: int) -> None:
        """A frame came that is larger than an envelope may be (or than may be read at all)."""
        if self.life is Life.ADMITTED:
            self._house.note_refusal("oversize", self, size_bytes)
            self.close(TOO_LARGE, ENVELOPE_TOO_LARGE)
        elif self.life is not Life.ENDED:
            self._house.note_auth_refusal(self, size_bytes)
            self.close(TOO_LARGE, AUTH_FRAME_TOO_LARGE)

    def lost(self, reason: str = "cut") -> None:
        """The socket is gone: the agent closed it (``closed``) or it was cut (``cut``). Idempotent."""
        self._end(reason)

    # What the house and the parts of the session tell.

    @property
    def is_open(self) -> bool:
        """Whether anything may still be written."""
        return self.life is not Life.ENDED

    def leave(self, code: int, reason: str) -> None:
        """Say goodbye. What the agent sent before it hears of that is taken until it has answered, or is cut."""
        if self.life is Life.ADMITTED:
            self._house.stats.closed[reason] += 1
            self.outflow.leave()
            self.life = Life.LEAVING
            self.line.close(code, reason)
        else:
            self.close(code, reason)

    def close(self, code: int, reason: str, because: str = "closed") -> None:
        """End the connection from this side; ``because`` is the journal's word for it."""
        if self.life is Life.LEAVING:
            self._end(because)
        elif self.life is not Life.ENDED:
            self._house.stats.closed[reason] += 1
            self.line.close(code, reason)
            self._end(because)

    def refuse(self, reason: str) -> None:
        """Tell a newcomer that it is not admitted, and why."""
        if self.life is not Life.ENDED:
            self.line.send(auth_result(False, reason))
            self._house.note_auth_refusal(self)
            self.close(POLICY_VIOLATION, reason)

    def admit(self) -> None:
        """The address is this connection's from now on."""
        house = self._house
        self.life = Life.ADMITTED
        self._inflow = Inflow(self, house, house.buckets.of(self.address, house.port.monotonic()))
        self.outflow = Outflow(self, house)
        self.line.send(auth_result(True, "", self.address))
        house.port.later(house.settings.start_pause_s, self.outflow.start)

    def store_failed(self) -> None:
        """What the agent sent or was to be sent may not be durable: it must connect and try again."""
        self.close(TRY_AGAIN_LATER, STORE_UNAVAILABLE, "cut")

    # Its own.

    def _authenticate(self, data: bytes, binary: bool) -> None:
        house, challenge = self._house, self._challenge
        assert challenge is not None
        self._challenge = None
        public_key = challenge.answered_by(data, binary, house.port.now_ms())
        if public_key is None:
            self.refuse(FAILED)
            return
        refusal = house.admits(public_key) if house.admits is not None else None
        if refusal is not None:
            self.refuse(refusal)
            return
        self.address = address_of(public_key, house.settings.host)
        self.life = Life.PROBING
        house.takeovers.claim(self)

    def _count_ping(self) -> None:
        """Its own pings, and pongs that nobody asked for, cost work: there is a bound to them."""
        settings = self._house.settings
        if self._pings is None:
            self._pings = Bucket(settings.pings_per_s, settings.ping_burst, self.seen_at)
        if self._pings.take(self.seen_at):
            self.close(POLICY_VIOLATION, PING_FLOOD)

    def _end(self, because: str) -> None:
        life, self.life = self.life, Life.ENDED
        if life is Life.ENDED:
            return
        if life is Life.LEAVING:
            life, because = Life.ADMITTED, "shutdown"
        if life is Life.ADMITTED:
            self.outflow.end()
            self._inflow.end()
        self._house.ended(self, life, because)
