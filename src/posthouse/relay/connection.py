"""Sockets: each begins as an HTTP request and may become a WebSocket, which is a session's line.

In: bytes of clients. Out: answers to plain requests; for WebSockets, whole messages to the session and its
messages to the socket. picows reads frames (and undoes their masks); what one iteration of the event loop writes to a
socket is sent with one system call.
It decides nothing about messages, and holds no more of a client than its limits say.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from picows import WSAutoPingStrategy, WSFrame, WSListener, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from ..wire.envelope import AUTH_BYTES_MAX, FRAME_BYTES_MAX
from . import http
from .session import AUTH_FRAME_TOO_LARGE, ENVELOPE_TOO_LARGE, Life, Session

if TYPE_CHECKING:
    from .server import RelayServer

FRAGMENTS_MAX = 1_024
"""Frames of one message; more are no message but an attack on whoever puts them together."""
STRANGE_BYTES_MAX = AUTH_BYTES_MAX + 8_192
"""What is read of a connection until it has authenticated: the request, the largest frame allowed, a few pings."""
READ_BYTES = 16_384
WRITE_BYTES = 65_536
"""Frames of one iteration that are gathered at most before they are handed to the transport."""
RESERVED_BITS = "reserved bits"
TOO_MANY_FRAGMENTS = "too many fragments"
PROTOCOL_ERROR = "protocol error"
INVALID_TEXT = "invalid text"
INTERNAL_ERROR = "internal error"
UNEXPECTED_CONTINUATION = "unexpected continuation"
UNFINISHED_MESSAGE = "unfinished message"

CLOSES: tuple[tuple[int, str], ...] = (
    (1002, RESERVED_BITS),
    (1002, UNEXPECTED_CONTINUATION),
    (1002, UNFINISHED_MESSAGE),
    (1002, TOO_MANY_FRAGMENTS),
    (1002, PROTOCOL_ERROR),
    (1007, INVALID_TEXT),
    (1011, INTERNAL_ERROR),
)
"""The codes and reasons with which a socket is closed for what is no matter of its session."""

_log = logging.getLogger("posthouse.relay")
_scratch = memoryview(bytearray(READ_BYTES))
"""What any front reads goes here first and is taken from here in the same step: one for all of them."""

_CONTINUATION = WSMsgType.CONTINUATION
_TEXT = WSMsgType.TEXT
_BINARY = WSMsgType.BINARY
_PING = WSMsgType.PING
_PONG = WSMsgType.PONG
_CLOSE = WSMsgType.CLOSE
_medium = struct.Struct(">BBH").pack
_large = struct.Struct(">BBQ").pack


def _head(opcode: int, size: int) -> bytes:
    """What stands before the payload of a whole frame from server to client."""
    if size < 126:
        return bytes((opcode, size))
    if size < 65_536:
        return _medium(opcode, 126, size)
    return _large(opcode, 127, size)


class _Held:
    """What picows takes for the transport and its socket: it may write, and leaves closing to us."""

    __slots__ = ("_fd", "_ssl", "get_write_buffer_size", "write", "writelines")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._ssl = transport.get_extra_info("ssl_object")
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.write = transport.write
        self.writelines = transport.writelines

    def get_extra_info(self, name: str) -> Any:
        """What picows needs to know of it."""
        return self if name == "socket" else self._ssl if name == "ssl_object" else None

    def fileno(self) -> int:
        """picows writes to it, where nothing is encrypted or waits to be written."""
        return self._fd

    def setsockopt(self, *option: int) -> None:
        """The event loop has set what matters."""

    def getsockopt(self, *option: int) -> int:
        """For picows' log, which nobody reads."""
        return 0

    def close(self) -> None:
        """Not now: a client that is still sending would lose our close frame with the connection."""

    abort = close


class Front(asyncio.BufferedProtocol):
    """A connection until it is known what it wants; plain requests are answered here."""

    __slots__ = ("_answered", "_data", "_request", "_server", "_taken", "_transport")

    def __init__(self, server: RelayServer) -> None:
        self._server = server
        self._data = b""
        self._request: http.Request | None = None
        self._taken = False
        """Its request is complete; what follows is dropped."""
        self._answered = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Its time runs from now on."""
        self._transport = transport
        if not self._server.admit(self, transport):
            transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        """It left, or was answered."""
        self._taken = self._answered = True
        self._server.gone(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return _scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        if self._taken:
            return
        self._data += _scratch[:nbytes]
        if self._request is None:
            end = self._data.find(b"\r\n\r\n")
            if end > http.HEAD_BYTES_MAX or (end < 0 and len(self._data) > http.HEAD_BYTES_MAX):
                return self.answer(http.wrong(431, f"a request's head has at most {http.HEAD_BYTES_MAX} bytes"))
            if end < 0:
                return None
            request = http.parse_head(self._data[:end])
            if isinstance(request, http.Answer):
                return self.answer(request)
            self._request = request
            self._data = self._data[end + 4 :]
            if request.path == "/ws" and request.method == "GET":
                refusal = self._server.refusal(request)
                return self.answer(refusal) if refusal else self._upgrade(request)
        if len(self._data) >= self._request.body_bytes:
            self._taken = True
            self._server.handle(self, self._request, self._data[: self._request.body_bytes])
        return None

    def eof_received(self) -> bool:
        """Who only stopped sending, and asked for something, may still read the answer."""
        return self._taken and not self._answered

    def expire(self) -> None:
        """Its time is up."""
        if self._answered:
            self._transport.abort()
        else:
            self.answer(http.wrong(408, "the request took too long"))

    @property
    def remote(self) -> str:
        """The client's network address."""
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    def answer(self, answer: http.Answer) -> None:
        """Send the answer and end. What the client still sends is read and dropped, or it would not see the answer."""
        if self._answered:
            return
        self._taken = self._answered = True
        transport = self._transport
        if transport.is_closing():
            return
        head_only = self._request is not None and self._request.method == "HEAD"
        transport.write(answer.render(head_only))
        if transport.can_write_eof():
            transport.write_eof()
            self._server.linger(self)
        else:
            transport.close()

    def _upgrade(self, request: http.Request) -> None:
        transport, server = self._transport, self._server
        self._taken = self._answered = True
        server.gone(self)
        wire = Wire(server, transport)
        protocol = WSProtocol(
            None,
            None,
            False,
            lambda _: wire,
            wire,
            True,
            None,
            False,
            1,
            1,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,
            FRAME_BYTES_MAX,
            None,
            2_048,
        )
        gate = _Gate(wire, transport, protocol)
        transport.set_protocol(gate)
        protocol.connection_made(_Held(transport))
        # What picows must know of the request, and no more: it keeps it for as long as the connection lasts.
        head = (
            "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {request.headers['sec-websocket-key']}\r\n\r\n"
        )
        rest = head.encode() + self._data
        while rest and not transport.is_closing() and transport.get_protocol() in (gate, protocol):
            buffer = protocol.get_buffer(-1)
            taken = min(len(buffer), len(rest))
            buffer[:taken] = rest[:taken]
            rest = rest[taken:]
            transport.get_protocol().buffer_updated(taken)
        if not wire.is_open:
            # Nobody else would end it.
            transport.abort()


class _Gate(asyncio.BufferedProtocol):
    """Reads for who has not authenticated: not much more than the answer to a challenge, whatever frames it is in."""

    __slots__ = ("_bytes", "_protocol", "_transport", "_wire")

    def __init__(self, wire: Wire, transport: Any, protocol: Any) -> None:
        self._wire = wire
        self._transport = transport
        self._protocol = protocol
        self._bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return cast(memoryview, self._protocol.get_buffer(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self._bytes += nbytes
        self._protocol.buffer_updated(nbytes)
        if self._transport.get_protocol() is not self:
            return
        if self._wire.is_admitted:
            self._transport.set_protocol(self._protocol)
        elif self._bytes > STRANGE_BYTES_MAX:
            self._wire.overfull(self._bytes)

    def eof_received(self) -> bool:
        """The client will send no more."""
        return bool(self._protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._protocol.connection_lost(exc)


class Wire(WSListener):
    """A WebSocket: the line of one session, and all that picows tells of it (its log, too)."""

    __slots__ = (
        "_closing", "_held", "_held_bytes", "_out", "_out_bytes", "_pinged", "_server", "_session", "_transport",
        "_write", "_ws", "rtt_s",
    )  # fmt: skip

    def __init__(self, server: RelayServer, transport: Any) -> None:
        self._server = server
        self._transport = transport
        self._write: Callable[[bytes], None] = transport.write
        self._ws: Any = None
        self._session: Session | None = None
        self._closing = False
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        self._out: list[bytes] | None = None
        self._out_bytes = 0
        self._pinged: tuple[bytes, float] | None = None
        self.rtt_s: float | None = None
        """How long the last ping took there and back, for operators."""

    # What the session asks for.

    def send(self, data: bytes) -> None:
        """One binary message."""
        if not self._closing:
            self._frame(0x82, data)

    def ping(self, payload: bytes) -> None:
        """A ping."""
        if not self._closing:
            self._pinged = (payload, time.monotonic())
            self._frame(0x89, payload)

    def close(self, code: int, reason: str) -> None:
        """Send a close frame; then the client has a moment to answer it."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self._held = None
        self._ws.send_close(code, reason)
        self._server.linger(self)
        # Its own close frame is to be seen.
        self.resume_reading()

    def buffered(self) -> int:
        """Bytes that the kernel has not taken."""
        return cast(int, self._transport.get_write_buffer_size()) + self._out_bytes

    def pause_reading(self) -> None:
        """Let the client wait."""
        if not self._closing and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _frame(self, opcode: int, payload: bytes) -> None:
        """Write a frame. All of one iteration of the loop are sent together: a system call costs more than a frame."""
        size = len(payload)
        out = self._out
        if out is None:
            self._out = [_head(opcode, size), payload]
            self._out_bytes = size + 2
            self._server.flush_soon(self)
        else:
            out.append(_head(opcode, size))
            out.append(payload)
            self._out_bytes += size + 2
            if self._out_bytes > WRITE_BYTES:
                self.flush()

    def flush(self) -> None:
        """Hand the frames to the transport."""
        out, self._out, self._out_bytes = self._out, None, 0
        if out is not None and not self._transport.is_closing():
            self._write(b"".join(out))

    # What the server asks for.

    def expire(self) -> None:
        """The client did not answer the close frame."""
        self._transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether its handshake is done and its socket not gone."""
        return self._session is not None

    @property
    def is_admitted(self) -> bool:
        """Whether its agent has authenticated."""
        return self._session is not None and self._session.life in (Life.ADMITTED, Life.LEAVING)

    def overfull(self, size_bytes: int) -> None:
        """A stranger sent too much."""
        self._oversize(size_bytes)
        self._drop_input()

    # What picows tells.

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The handshake is done."""
        self._ws = transport
        name = self._transport.get_extra_info("peername")
        self._session = self._server.opened(self, str(name[0]) if name else "")
        self._session.opened()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame came."""
        kind = frame.msg_type
        session = self._session
        if session is None:
            return
        if self._closing and kind in (_CLOSE, _PING):
            if kind == _CLOSE:
                self._transport.close()
            return
        # While it closes too: what the client sent before it read our close frame is for the session to judge.
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            session.close(1002, RESERVED_BITS)
        elif kind == _BINARY and frame.fin and self._held is None:
            session.frame(frame.get_payload_as_bytes(), True)
        elif kind == _PONG:
            payload = frame.get_payload_as_bytes()
            if self._pinged is not None and self._pinged[0] == payload:
                self.rtt_s, self._pinged = time.monotonic() - self._pinged[1], None
            session.pong(payload)
        elif kind == _PING:
            self._frame(0x8A, frame.get_payload_as_bytes())
            session.ping_seen()
        elif kind == _CLOSE:
            self._closed_by_client(frame.get_payload_as_bytes())
        else:
            self._part(session, kind, frame)

    def _part(self, session: Session, kind: WSMsgType, frame: WSFrame) -> None:
        """A text message, or a part of a message."""
        if kind == _CONTINUATION:
            if self._held is None:
                return session.close(1002, UNEXPECTED_CONTINUATION)
        elif self._held is not None:
            return session.close(1002, UNFINISHED_MESSAGE)
        elif frame.fin:
            return session.frame(frame.get_payload_as_bytes(), False)
        else:
            # The first part says whether the whole is text.
            self._held = [b"\1" if kind == _BINARY else b""]
            self._held_bytes = 0
        if len(self._held) > FRAGMENTS_MAX:
            return session.close(1002, TOO_MANY_FRAGMENTS)
        self._held_bytes += frame.payload_size
        if self._held_bytes > FRAME_BYTES_MAX:
            self._held = None
            return session.oversize(self._held_bytes)
        self._held.append(frame.get_payload_as_bytes())
        if frame.fin:
            binary, *parts = self._held
            self._held = None
            session.frame(b"".join(parts), bool(binary))
        return None

    def _closed_by_client(self, payload: bytes) -> None:
        self.flush()
        self._closing = True
        self._ws.send_close(int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1000, b"")
        # Flushed first, then closed; a client that does not read has no more than its moment.
        self._server.linger(self)
        self._transport.close()
        if self._session is not None:
            self._session.lost("closed")

    def resume_writing(self) -> None:
        """The socket took what was written."""
        if self._session is not None and not self._closing:
            self._session.writable()

    def pause_writing(self) -> None:
        """The session asks how much is buffered before it writes."""

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The socket is gone."""
        self.lost()

    def lost(self) -> None:
        """The socket is gone. Idempotent."""
        session, self._session = self._session, None
        self._closing = True
        self._server.gone(self)
        self._ws = None
        if session is not None:
            session.lost("cut")

    # picows' log: it tells here of a broken frame before it answers it in its own words.

    def isEnabledFor(self, level: int) -> bool:
        """picows' chatter is not wanted."""
        return False

    def debug(self, text: str, *values: Any) -> None:
        """Not wanted."""

    info = warning = log = debug

    def error(self, text: str, *values: Any) -> None:
        """A frame that no WebSocket may send: (code, what picows would say)."""
        detail: Any = values[0] if values else ()
        code = int(detail[0]) if isinstance(detail, tuple) and len(detail) == 2 else 1002
        if self._closing or self._ws is None:
            return
        _log.debug("a broken frame: %s", detail)
        self.flush()
        # What came before it in the same bytes is still to be handed on, so the rest is done a little later.
        loop = asyncio.get_running_loop()
        if code == 1009:
            size = re.search(r"(\d+) >", str(detail[1]))
            loop.call_soon(self._oversize, int(size[1]) if size else FRAME_BYTES_MAX + 1)
            admitted = self._session is not None and self._session.address
            self._ws.send_close(1009, ENVELOPE_TOO_LARGE if admitted else AUTH_FRAME_TOO_LARGE)
        else:
            reason = INVALID_TEXT if code == 1007 else PROTOCOL_ERROR
            loop.call_soon(self._broken, code, reason)
            self._ws.send_close(code, reason)
        self._drop_input()

    def exception(self, text: str, *values: Any) -> None:
        """A session raised: a mistake of ours, which ends this connection and no other."""
        _log.exception("a session failed")
        self._broken(1011, INTERNAL_ERROR)

    def _broken(self, code: int, reason: str) -> None:
        if self._session is not None and not self._closing:
            self._session.close(code, reason)

    def _oversize(self, size_bytes: int) -> None:
        if self._session is not None and not self._closing:
            self._session.oversize(size_bytes)

    def _drop_input(self) -> None:
        """Nothing that follows can be read as frames; it is taken off the socket so that our close frame is seen."""
        transport = self._transport
        if transport.is_closing():
            return
        self._write = _drop
        transport.set_protocol(_Drain(self))
        if transport.can_write_eof():
            transport.write_eof()


def _drop(data: bytes) -> None:
    """The close frame was the last that is written."""


class _Drain(asyncio.BufferedProtocol):
    """Reads and drops."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def get_buffer(self, sizehint: int) -> memoryview:
        return _scratch

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.lost()
