"""One connection. Skeleton of the public interface."""

from __future__ import annotations


class Session:
    """One connection of an agent. Everything it does to its socket goes through its line."""

    address: str
    """The agent's address; '' until it is authenticated."""

    def opened(self) -> None:
        """The line can be written to: the relay speaks first."""

    def frame(self, data: bytes, binary: bool = True) -> None:
        """A whole message came."""

    def pong(self, payload: bytes) -> None:
        """A pong came."""

    def ping_seen(self) -> None:
        """A ping came; the server answers it itself."""

    def writable(self) -> None:
        """The line's buffer has room again (call it when it is below its low-water mark)."""

    def oversize(self, size_bytes: int) -> None:
        """A frame came that is larger than may be read at all (FRAME_BYTES_MAX)."""

    def lost(self, reason: str = "cut") -> None:
        """The socket is gone: closed by the agent (``closed``) or cut (``cut``). Idempotent."""
