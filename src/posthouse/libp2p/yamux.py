"""yamux: many streams over one connection, each with its own flow control. Without any input or output of its own.

    idle ── open, or a SYN comes ──→ open ── FIN both ways, in either order ──→ gone
                                      └──────────── RST, either way ─────────────↑

In: plain bytes of the other side, in pieces of any size, and what the streams' users do. Out: frames, and which flows
have changed. A flow takes no more than its window, a session no more than its bounds, whatever the other side sends:
a frame that announces more is refused before its body is read. Bodies are handed on as they come, not gathered.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from .errors import BadInput, ConnectionLost, LimitReached, StreamReset, YamuxError

PROTOCOL = "/yamux/1.0.0"
HEADER_BYTES = 12
WINDOW_BYTES = 262_144
"""What each side may send on a new stream before the other says more."""
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
NORMAL, BROKEN, INTERNAL = range(3)
"""Why a side goes away."""
_ID_MAX = _WINDOW_MAX = 0xFFFF_FFFF
_HEADER = struct.Struct(">BBHII")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one session may take up."""

    window_bytes: int = WINDOW_BYTES
    """What the other side may send on a stream before we read; at least the protocol's 256 KiB."""
    streams_in_max: int = 256
    """Open at once, opened by the other side; more are reset."""
    streams_out_max: int = 1_024
    """Open at once, opened by us."""
    unread_bytes_max: int = 16_777_216
    """Over all streams of the connection; the stream that brings more is reset."""
    frame_bytes_max: int = 65_536
    """Of what we send in one frame, so that streams take turns."""
    discard_bytes_max: int = 16_777_216
    """Of one frame for a stream that is already gone; a longer one ends the connection."""

    def __post_init__(self) -> None:
        if self.window_bytes < WINDOW_BYTES:
            raise BadInput(f"window_bytes is at least {WINDOW_BYTES}, as the protocol has it, not {self.window_bytes}")
        if min(self.streams_in_max, self.streams_out_max, self.unread_bytes_max, self.frame_bytes_max) <= 0:
            raise BadInput("numbers of streams and bytes are greater than 0")


class Memory:
    """What many sessions hold unread together, and how much that may be."""

    __slots__ = ("most", "used")

    def __init__(self, bytes_max: int) -> None:
        self.most = bytes_max
        self.used = 0


class Flow:
    """One stream's state. Whoever uses it calls the session; the session changes it."""

    __slots__ = (
        "credit",
        "deaf",
        "ended_in",
        "ended_out",
        "id",
        "offset",
        "ours",
        "reset",
        "unread",
        "unread_bytes",
        "user",
        "window_in",
        "window_out",
    )

    def __init__(self, id: int, ours: bool, window_in: int) -> None:
        self.id = id
        self.ours = ours
        """Whether we opened it."""
        self.unread: deque[bytes] = deque()
        self.offset = 0
        """What of the first piece has been read."""
        self.unread_bytes = 0
        self.window_in = window_in
        """What the other side may still send."""
        self.window_out = WINDOW_BYTES
        """What we may still send."""
        self.credit = 0
        """What was read and not given back to the other side's window yet."""
        self.ended_in = False
        self.ended_out = False
        self.reset = False
        self.deaf = False
        """We read no more: what comes is dropped, and the window not refilled."""
        self.user: object = None
        """Whatever the caller hangs on it."""

    @property
    def is_gone(self) -> bool:
        """Whether nothing can come or go any more (what is unread can still be read)."""
        return self.reset or (self.ended_in and self.ended_out)


class Session:
    """All streams of one connection."""

    def __init__(self, client: bool, bounds: Bounds, memory: Memory | None = None) -> None:
        """``client``: we dialled. ``memory`` is shared with other sessions."""
        self._memory = memory or Memory(bounds.unread_bytes_max)
        self._bounds = bounds
        self._parity = 1 if client else 0
        self._next_id = 1 if client else 2
        self.flows: dict[int, Flow] = {}
        self._streams_in = 0
        self.unread_bytes = 0
        self.outgoing: list[bytes | memoryview] = []
        """Frames to be sent; the caller takes them."""
        self.opened: list[Flow] = []
        """Streams that the other side has opened; the caller takes them."""
        self.gone_away: int | None = None
        """The other side takes no new streams; why."""
        self.refused = 0
        """Streams that were reset because of our bounds."""
        self._went_away = False
        self._rest = b""
        self._body: Flow | None = None
        self._body_left = 0
        self._body_flags = 0
        self._pings = 0
        self.pong = 0
        """The number of the last of our pings that was answered."""

    # What comes.

    def receive(self, data: bytes) -> dict[Flow, None]:
        """Take bytes; the flows on which something changed, in order. YamuxError: the connection cannot go on."""
        changed: dict[Flow, None] = {}
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while True:
            if self._body_left:
                taken = min(self._body_left, end - at)
                if not taken:
                    break
                self._deliver(data[at : at + taken], changed)
                at += taken
                self._body_left -= taken
                if self._body_left:
                    break
                self._close_body(changed)
            if end - at < HEADER_BYTES:
                break
            version, kind, flags, id, size = _HEADER.unpack_from(data, at)
            at += HEADER_BYTES
            if version != 0:
                raise YamuxError(f"version {version}; only 0 is known")
            if kind == DATA:
                self._data(id, flags, size, changed)
            elif kind == WINDOW:
                self._window(id, flags, size, changed)
            elif kind == PING:
                self._ping(flags, size)
            elif kind == GO_AWAY:
                self.gone_away = size
            else:
                raise YamuxError(f"a frame of kind {kind}")
        self._rest = data[at:]
        return changed

    def _data(self, id: int, flags: int, size: int, changed: dict[Flow, None]) -> None:
        flow = self._flow(id, flags)
        if flow is None:
            if size > self._bounds.discard_bytes_max:
                raise YamuxError(f"a frame of {size} bytes for a stream that is not there")
        else:
            if flow.ended_in and (size or flags & FIN):
                raise YamuxError("data behind the end of a stream")
            if size > flow.window_in:
                raise YamuxError(f"a frame of {size} bytes where {flow.window_in} are allowed")
            flow.window_in -= size
        self._body, self._body_left, self._body_flags = flow, size, flags
        if not size:
            self._close_body(changed)

    def _deliver(self, data: bytes, changed: dict[Flow, None]) -> None:
        flow = self._body
        if flow is None or flow.deaf or flow.reset:
            return
        size, memory = len(data), self._memory
        if self.unread_bytes + size > self._bounds.unread_bytes_max or memory.used + size > memory.most:
            self.refused += 1
            self.reset(flow)
        else:
            flow.unread.append(data)
            flow.unread_bytes += size
            self.unread_bytes += size
            memory.used += size
        changed[flow] = None

    def _close_body(self, changed: dict[Flow, None]) -> None:
        flow, flags, self._body = self._body, self._body_flags, None
        if flow is not None:
            self._flagged(flow, flags, changed)

    def _window(self, id: int, flags: int, size: int, changed: dict[Flow, None]) -> None:
        flow = self._flow(id, flags)
        if flow is None:
            return
        if flow.window_out + size > _WINDOW_MAX:
            raise YamuxError("a window beyond all bounds")
        flow.window_out += size
        if size:
            changed[flow] = None
        self._flagged(flow, flags, changed)

    def _flow(self, id: int, flags: int) -> Flow | None:
        """The stream of a frame, which a SYN opens; None if it is gone, or refused."""
        if not flags & SYN:
            return self.flows.get(id)
        if id == 0 or id & 1 == self._parity:
            raise YamuxError(f"the other side cannot open stream {id}")
        if id in self.flows:
            raise YamuxError(f"stream {id} is opened twice")
        if self._streams_in >= self._bounds.streams_in_max or self._went_away:
            self.refused += 1
            if not flags & RST:
                self._frame(WINDOW, RST, id, 0)
            return None
        flow = self.flows[id] = Flow(id, False, self._bounds.window_bytes)
        self._streams_in += 1
        self.opened.append(flow)
        self._frame(WINDOW, ACK, id, self._bounds.window_bytes - WINDOW_BYTES)
        return flow

    def _flagged(self, flow: Flow, flags: int, changed: dict[Flow, None]) -> None:
        """What a frame says besides its body."""
        if flags & RST:
            if not flow.reset:
                self._end_by_force(flow)
                changed[flow] = None
        elif flags & FIN and not flow.ended_in:
            flow.ended_in = True
            changed[flow] = None
            self._forget_if_gone(flow)

    def _ping(self, flags: int, value: int) -> None:
        if flags & SYN:
            self._frame(PING, ACK, 0, value)
        elif flags & ACK and value == self._pings & _ID_MAX:
            self.pong = self._pings

    # What our side does.

    def open(self) -> Flow:
        """A new stream. LimitReached if there are too many, ConnectionLost if the other side takes no more."""
        if self.gone_away is not None or self._went_away:
            raise ConnectionLost("the connection takes no new streams")
        if len(self.flows) - self._streams_in >= self._bounds.streams_out_max or self._next_id > _ID_MAX:
            raise LimitReached(f"{len(self.flows)} streams are open on this connection")
        flow = self.flows[self._next_id] = Flow(self._next_id, True, self._bounds.window_bytes)
        self._next_id += 2
        self._frame(WINDOW, SYN, flow.id, self._bounds.window_bytes - WINDOW_BYTES)
        return flow

    def write(self, flow: Flow, data: bytes | memoryview) -> int:
        """Send what the other side's window takes; how many bytes that was."""
        if flow.reset:
            raise StreamReset("the stream was reset")
        assert not flow.ended_out
        size = min(len(data), flow.window_out)
        flow.window_out -= size
        most = self._bounds.frame_bytes_max
        for at in range(0, size, most):
            part = data[at : min(at + most, size)]
            self._frame(DATA, 0, flow.id, len(part))
            self.outgoing.append(part)
        return size

    def finish(self, flow: Flow) -> None:
        """We write no more on it."""
        if not flow.ended_out and not flow.reset:
            flow.ended_out = True
            self._frame(WINDOW, FIN, flow.id, 0)
            self._forget_if_gone(flow)

    def read(self, flow: Flow, most: int) -> bytes:
        """Take what has come, up to so many bytes; the other side may then send as much again."""
        unread = flow.unread
        if not unread:
            return b""
        first, offset = unread[0], flow.offset
        left = len(first) - offset
        if left > most:
            data = first[offset : offset + most]
            flow.offset = offset + most
        elif left == most or len(unread) == 1:
            data = first[offset:] if offset else first
            unread.popleft()
            flow.offset = 0
        else:
            data = self._gather(flow, most)
        size = len(data)
        flow.unread_bytes -= size
        self.unread_bytes -= size
        self._memory.used -= size
        flow.credit += size
        if flow.credit * 2 >= self._bounds.window_bytes and not flow.ended_in and not flow.reset:
            flow.window_in += flow.credit
            self._frame(WINDOW, 0, flow.id, flow.credit)
            flow.credit = 0
        return data

    def _gather(self, flow: Flow, most: int) -> bytes:
        """The same out of several pieces."""
        unread, parts = flow.unread, []
        while unread and most:
            first = unread.popleft()
            part = first[flow.offset : flow.offset + most]
            flow.offset += len(part)
            if flow.offset < len(first):
                unread.appendleft(first)
            else:
                flow.offset = 0
            parts.append(part)
            most -= len(part)
        return b"".join(parts)

    def give_back(self, flow: Flow, data: bytes) -> None:
        """What was read belongs to somebody else, who reads it next."""
        if data and not flow.deaf and not flow.reset:
            if flow.offset:
                flow.unread[0] = flow.unread[0][flow.offset :]
                flow.offset = 0
            flow.unread.appendleft(data)
            flow.unread_bytes += len(data)
            self.unread_bytes += len(data)
            self._memory.used += len(data)
            flow.credit -= len(data)

    def stop_reading(self, flow: Flow) -> None:
        """Drop what has come and what comes."""
        flow.deaf = True
        self._drop_unread(flow)

    def reset(self, flow: Flow) -> None:
        """End it by force."""
        if not flow.is_gone:
            self._frame(WINDOW, RST, flow.id, 0)
        self._end_by_force(flow)

    def ping(self) -> int:
        """Ask for a sign of life; the number that ``pong`` then has."""
        self._pings += 1
        self._frame(PING, SYN, 0, self._pings & _ID_MAX)
        return self._pings

    def go_away(self, why: int = NORMAL) -> None:
        """Say that we take no new streams."""
        if not self._went_away:
            self._went_away = True
            self._frame(GO_AWAY, 0, 0, why)

    def take(self) -> bytes:
        """What is to be sent now."""
        out = b"".join(self.outgoing)
        self.outgoing.clear()
        return out

    def end(self) -> list[Flow]:
        """The connection is gone: every stream ends by force. Those that were open."""
        flows = list(self.flows.values())
        for flow in flows:
            self._end_by_force(flow, keep_unread=flow.ended_in)
        return flows

    # Both.

    def _frame(self, kind: int, flags: int, id: int, size: int) -> None:
        self.outgoing.append(_HEADER.pack(0, kind, flags, id, size))

    def _end_by_force(self, flow: Flow, keep_unread: bool = False) -> None:
        flow.reset = True
        if not keep_unread:
            self._drop_unread(flow)
        self._forget_if_gone(flow)

    def _drop_unread(self, flow: Flow) -> None:
        self.unread_bytes -= flow.unread_bytes
        self._memory.used -= flow.unread_bytes
        flow.unread.clear()
        flow.unread_bytes = flow.offset = 0

    def _forget_if_gone(self, flow: Flow) -> None:
        if flow.is_gone and self.flows.pop(flow.id, None) is not None and not flow.ours:
            self._streams_in -= 1
