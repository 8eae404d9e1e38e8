"""A stream: bytes in order to and from one peer, in the form that coroutines like.

In: a flow of the multiplexer. Out: reading and writing with back pressure. A stream may be written to before the other
side has agreed on the protocol; that it does not is then told by the first read (NotSupported). One coroutine may read
and one may write at a time.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import multistream, varint
from .errors import ConnectionLost, Libp2pError, LimitReached, NotSupported, StreamEnded, StreamReset, WireError
from .yamux import Flow

if TYPE_CHECKING:
    from .connection import Connection
    from .peer_id import PeerId

_NEEDED_BYTES_MAX = 4_096
"""Whoever reads more than this takes it as it comes, so that the other side's window is refilled."""


class Stream:
    """One stream of a connection."""

    __slots__ = (
        "_error",
        "_flow",
        "_needed",
        "_negotiation",
        "_reader",
        "_session",
        "_writer",
        "connection",
        "protocol",
    )

    def __init__(
        self, connection: Connection, flow: Flow, negotiation: multistream.Dialler | multistream.Listener
    ) -> None:
        self.connection = connection
        self._session = connection.session
        self._flow = flow
        self._negotiation: multistream.Dialler | multistream.Listener | None = negotiation
        self._reader: asyncio.Future[None] | None = None
        self._needed = 1
        """How many bytes make it worth to wake who reads."""
        self._writer: asyncio.Future[None] | None = None
        self._error: Libp2pError | None = None
        self.protocol = ""
        """What both sides have agreed on, or what we proposed and rely on."""

    @property
    def peer(self) -> PeerId:
        """Who is at the other end; proven by the connection."""
        return self.connection.peer

    @property
    def is_open(self) -> bool:
        """Whether it can still be written to."""
        return not self._flow.ended_out and not self._flow.reset

    def __repr__(self) -> str:
        return f"<Stream {self._flow.id} {self.protocol or '(negotiating)'} with {self.connection.peer}>"

    # Reading.

    async def read(self, most: int = 65_536) -> bytes:
        """Some bytes, as soon as there are any; empty at the end."""
        while not (data := self._take(most)):
            if self._ended():
                return b""
            await self._readable()
        return data

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes; StreamEnded if the other side ends before."""
        data = self._take(size)
        if len(data) == size:
            return data
        parts, left = [data], size - len(data)
        while left:
            data = self._take(left)
            if data:
                parts.append(data)
                left -= len(data)
            elif self._ended():
                raise StreamEnded(f"the stream ended {left} bytes too early")
            else:
                await self._readable(min(left, _NEEDED_BYTES_MAX))
        return b"".join(parts)

    async def read_varint(self) -> int:
        """A number as a varint; StreamEnded if the other side ends before."""
        data = b""
        while (found := varint.decode(data)) is None:
            data += await self.read_exactly(1)
        return found[0]

    async def read_frame(self, most: int) -> bytes:
        """Bytes behind their length as a varint; LimitReached, before anything of it is read, if they are too many."""
        size = await self.read_varint()
        if size > most:
            raise LimitReached(f"a frame of {size} bytes; at most {most} are taken")
        return await self.read_exactly(size)

    async def read_line(self, most: int) -> bytes:
        """Bytes up to a line end, without it; all up to the end of the stream if there is none."""
        line = bytearray()
        while (end := line.find(b"\n")) < 0:
            if len(line) > most:
                raise LimitReached(f"a line of more than {most} bytes")
            data = await self.read(min(most + 1, 65_536))
            if not data:
                return bytes(line)
            line += data
        self._session.give_back(self._flow, bytes(line[end + 1 :]))
        if end > most:
            raise LimitReached(f"a line of more than {most} bytes")
        return bytes(line[:end])

    def _take(self, most: int) -> bytes:
        if self._negotiation is not None and not self.advance():
            return b""
        data = self._session.read(self._flow, most)
        if self._session.outgoing:
            self.connection.flush_soon()
        return data

    def _ended(self) -> bool:
        """Whether nothing more comes; raises if it ended by force."""
        if self._error is not None:
            raise self._error
        if self._flow.reset:
            raise self._lost()
        if self._flow.ended_in and self._negotiation is not None:
            raise StreamEnded("the stream ended before both sides had agreed on a protocol")
        return self._flow.ended_in

    def _lost(self) -> Libp2pError:
        if self.connection.is_open:
            return StreamReset("the stream was reset")
        return ConnectionLost(f"the connection to {self.connection.peer} was lost")

    async def _readable(self, needed: int = 1) -> None:
        assert self._reader is None, "two coroutines read the same stream"
        self._needed = needed
        self.connection.flush_if_few()
        self._reader = self.connection.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    # Writing.

    async def write(self, data: bytes | memoryview) -> None:
        """Hand over all bytes; waits while the other side does not take them."""
        while True:
            self._check_writable()
            taken = 0
            room = self.connection.room_bytes
            if room:
                taken = self._session.write(self._flow, data if len(data) <= room else memoryview(data)[:room])
                self.connection.flush_soon(taken)
            if taken == len(data):
                return
            data = memoryview(data)[taken:]
            await self._writable()

    async def write_frame(self, body: bytes) -> None:
        """Bytes behind their length as a varint."""
        await self.write(varint.frame(body))

    def _check_writable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._flow.reset or not self.connection.is_open:
            raise self._lost()
        if self._flow.ended_out:
            raise StreamEnded("we have closed this stream")

    async def _writable(self) -> None:
        assert self._writer is None, "two coroutines write to the same stream"
        self._writer = self.connection.loop.create_future()
        self.connection.wants_to_write(self)
        try:
            await self._writer
        finally:
            self._writer = None

    # Ending.

    def close_write(self) -> None:
        """Say that we write no more; reading goes on."""
        self._session.finish(self._flow)
        self.connection.flush_soon()

    def close(self) -> None:
        """Say that we are done with it. What was written still arrives; what comes now is dropped."""
        self._session.finish(self._flow)
        self._session.stop_reading(self._flow)
        self.connection.linger(self._flow)
        self._part()

    def reset(self) -> None:
        """End it by force, both ways."""
        self._session.reset(self._flow)
        self._part()

    def _part(self) -> None:
        self.connection.flush_soon()
        self.wake()
        if self._flow.is_gone:
            # They would hold each other until the garbage is collected.
            self._flow.user = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.reset()

    def __del__(self) -> None:
        # Whoever forgets a stream forgets what it holds, too.
        self._session.stop_reading(self._flow)

    # For the connection.

    def changed(self) -> None:
        """Something came, or the other side takes more: wake those who can go on with that."""
        reader, flow = self._reader, self._flow
        if reader is not None:
            agreed = self._negotiation is None or self.advance()
            enough = (agreed and flow.unread_bytes >= self._needed) or flow.ended_in or flow.reset
            if enough and not reader.done():
                reader.set_result(None)
        self.wake_writer()

    def wake(self) -> None:
        """Something has changed: look again."""
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def wake_writer(self) -> None:
        """There is room again."""
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def rely_on(self, protocol: str) -> None:
        """Go on as if the other side had agreed already."""
        self.protocol = protocol

    def begin(self) -> None:
        """Send what the negotiation has to say first."""
        self._say()

    def advance(self) -> bool:
        """Negotiate with what has come; True when a protocol is agreed on."""
        negotiation = self._negotiation
        if negotiation is None:
            return True
        data = self._session.read(self._flow, 65_536)
        if not data:
            return False
        try:
            done = negotiation.receive(data)
        except (WireError, NotSupported) as error:
            self._error = error
            self._session.reset(self._flow)
            self.connection.flush_soon()
            self.wake()
            return False
        self._say()
        if done:
            assert negotiation.protocol is not None
            self.protocol = negotiation.protocol
            self._session.give_back(self._flow, negotiation.rest)
            self._negotiation = None
        return done

    async def agreed(self) -> None:
        """Wait until both sides have agreed on a protocol."""
        while not self.advance():
            if self._ended():
                raise StreamEnded("the stream ended before both sides had agreed on a protocol")
            await self._readable(0)

    def _say(self) -> None:
        assert self._negotiation is not None
        out = self._negotiation.take()
        if out and not self._flow.reset and not self._flow.ended_out:
            # A window holds many negotiations; one that it does not hold is an attack.
            if self._session.write(self._flow, out) < len(out):
                self._session.reset(self._flow)
            self.connection.flush_soon(len(out))
