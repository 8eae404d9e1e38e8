"""Pages: bodies of queued messages, read a few pages at a time over all connections.

In: which messages a connection is to be sent next. Out: their bodies, in the order of asking. However many
agents reconnect at once, only so many pages are read at a time, and only so many bytes are held for those
that are not ready for them yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from ..mailbox.message import Ref
from .port import BodiesRead, Port

HELD_BYTES_MAX = 33_554_432


class Pages:
    """A few reads at once; the others wait in line."""

    def __init__(self, port: Port, at_once_max: int) -> None:
        self._port = port
        self._at_once_max = at_once_max
        self._reading = 0
        self._held_bytes = 0
        self._line: deque[tuple[Sequence[Ref], BodiesRead]] = deque()

    def read(self, refs: Sequence[Ref], read: BodiesRead) -> None:
        """Read a page."""
        if self._reading >= self._at_once_max:
            self._line.append((refs, read))
        else:
            self._begin(refs, read)

    def hold(self, size_bytes: int) -> bool:
        """Keep a page that was read ahead; False: there is no room for it, read it again when it is wanted."""
        if self._held_bytes + size_bytes > HELD_BYTES_MAX:
            return False
        self._held_bytes += size_bytes
        return True

    def let_go(self, size_bytes: int) -> None:
        """A page that was held is written, or not wanted any more."""
        self._held_bytes -= size_bytes

    def _begin(self, refs: Sequence[Ref], read: BodiesRead) -> None:
        self._reading += 1
        self._port.read_bodies(refs, partial(self._read, read))

    def _read(self, read: BodiesRead, bodies: Sequence[bytes | None] | BaseException) -> None:
        self._reading -= 1
        try:
            read(bodies)
        finally:
            if self._line:
                self._begin(*self._line.popleft())
