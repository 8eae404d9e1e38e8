"""multistream-select: two ends agree on a protocol. Without any input or output of its own.

    dialler   ── /multistream/1.0.0, /wanted/1 ──→   listener
              ←── /multistream/1.0.0, /wanted/1 ──            (or "na", and the next one is proposed)

In: bytes of the other side. Out: bytes for it, then the protocol, and what already came behind the negotiation. The
dialler says its first proposal together with the greeting; with only one it may go on to write at once. Lines are
bounded, and so is the number of proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from . import varint
from .errors import MultistreamError, NotSupported, VarintError

GREETING = "/multistream/1.0.0"
LINE_BYTES_MAX = 1_024
PROPOSALS_MAX = 32
_NONE = "na"


@lru_cache(maxsize=512)
def line(text: str) -> bytes:
    """A line as it is sent."""
    data = text.encode()
    if len(data) >= LINE_BYTES_MAX or b"\n" in data:
        raise MultistreamError(f"a protocol's name has fewer than {LINE_BYTES_MAX} bytes and no line end")
    return varint.encode(len(data) + 1) + data + b"\n"


_GREETING_LINE = line(GREETING)
_NONE_LINE = line(_NONE)


class _Negotiation:
    """What both ends have in common: lines that come in, bytes that go out."""

    __slots__ = ("_buffer", "_greeted", "outgoing", "protocol")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeted = False
        self.outgoing = bytearray()
        """What is to be sent; the caller takes it."""
        self.protocol: str | None = None
        """What was agreed on; None until then."""

    @property
    def rest(self) -> bytes:
        """What came behind the negotiation; it belongs to the protocol."""
        return bytes(self._buffer)

    def take(self) -> bytes:
        """What is to be sent now."""
        out = bytes(self.outgoing)
        self.outgoing.clear()
        return out

    def receive(self, data: bytes | bytearray | memoryview) -> bool:
        """Take bytes; True when a protocol is agreed on. Raises MultistreamError, or NotSupported."""
        buffer = self._buffer
        buffer += data
        if not self._greeted and buffer.startswith(_GREETING_LINE):
            del buffer[: len(_GREETING_LINE)]
            self._greeted = True
            self._greet()
        while self.protocol is None and buffer:
            size, start = buffer[0], 1
            if size >= 0x80:
                found = self._long(buffer)
                if found is None:
                    return False
                size, start = found
            if not 0 < size <= LINE_BYTES_MAX:
                raise MultistreamError(f"a line of {size} bytes; 1 to {LINE_BYTES_MAX} are taken")
            end = start + size
            if len(buffer) < end:
                return False
            raw = bytes(buffer[start:end])
            del buffer[:end]
            if raw[-1:] != b"\n":
                raise MultistreamError("a line without its end")
            if not self._greeted:
                raise MultistreamError(f"not a greeting: {raw[:60]!r}")
            try:
                text = raw[:-1].decode()
            except UnicodeDecodeError:
                raise MultistreamError("a line that is not UTF-8") from None
            self._line(text)
        return self.protocol is not None

    def _long(self, buffer: bytearray) -> tuple[int, int] | None:
        try:
            return varint.decode(buffer)
        except VarintError as error:
            raise MultistreamError(f"no line: {error}") from None

    def _greet(self) -> None:
        """The other side has greeted."""

    def _line(self, text: str) -> None:
        raise NotImplementedError


class Dialler(_Negotiation):
    """The end that wants a protocol: the first of these that the other side speaks."""

    __slots__ = ("_next", "_wanted")

    def __init__(self, protocols: Sequence[str]) -> None:
        super().__init__()
        if not 0 < len(protocols) <= PROPOSALS_MAX:
            raise MultistreamError(f"1 to {PROPOSALS_MAX} protocols can be proposed, not {len(protocols)}")
        self._wanted = protocols
        self._next = 1
        self.outgoing += _GREETING_LINE + line(protocols[0])

    def _line(self, text: str) -> None:
        if text == self._wanted[self._next - 1]:
            self.protocol = text
        elif text != _NONE:
            raise MultistreamError(f"an answer to something else: {text[:60]!r}")
        elif self._next == len(self._wanted):
            raise NotSupported(f"the other side speaks none of {', '.join(self._wanted)}")
        else:
            self.outgoing += line(self._wanted[self._next])
            self._next += 1


class Listener(_Negotiation):
    """The end that is asked."""

    __slots__ = ("_proposals", "_speaks")

    def __init__(self, speaks: Callable[[str], bool]) -> None:
        """``speaks`` tells whether we take a protocol."""
        super().__init__()
        self._speaks = speaks
        self._proposals = 0

    def _greet(self) -> None:
        self.outgoing += _GREETING_LINE

    def _line(self, text: str) -> None:
        if self._speaks(text):
            self.outgoing += line(text)
            self.protocol = text
            return
        self._proposals += 1
        if self._proposals >= PROPOSALS_MAX:
            raise MultistreamError(f"{PROPOSALS_MAX} proposals, none of which we speak")
        self.outgoing += _NONE_LINE
