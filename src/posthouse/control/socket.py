"""The control socket: one JSON document a line over a Unix socket that only its owner can open.

    server → {"posthouse": 1, "version": …, "store": …, "node": …, "pid": …}         once, at first
    client → {"id": 1, "call": "dead.redrive", "with": {…}}
    server → {"id": 1, "progress": [done, total or null, "redriving"]}               any number
    server → {"id": 1, "result": {…}} | {"id": 1, "refused": {…}} | {"id": 1, "error": {code, message}}

This module knows how lines, limits and addresses work; ``server`` and ``client`` know what is said.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from ..errors import ConfigError, InvalidInput, StoreUnavailable

PROTOCOL = 1
REQUEST_BYTES_MAX = 24 * 1_048_576
"""Room for the largest body that may be posted by hand (see ``message.POST_BYTES_MAX``), in base64."""
REPLY_BYTES_MAX = 64 * 1_048_576
_ADDRESS_BYTES_MAX = 100
"""The system's limit is 108 on Linux and 104 elsewhere."""


class Lines:
    """JSON documents over a socket, one a line."""

    def __init__(self, sock: socket.socket, bytes_max: int) -> None:
        self.socket = sock
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._searched = 0

    def send(self, document: dict[str, Any], bytes_max: int | None = None) -> None:
        """Send one document; OSError if the other side is gone, InvalidInput if it is too large for it."""
        try:
            line = orjson.dumps(document) + b"\n"
        except TypeError as error:
            # Bytes that are no text, or a number that no field could hold.
            raise InvalidInput(f"the request cannot be sent: {error}") from None
        if bytes_max is not None and len(line) > bytes_max:
            raise InvalidInput(f"a request of {len(line)} bytes; at most {bytes_max} are allowed")
        self.socket.sendall(line)

    def receive(self, idle_s: float | None = None, within_s: float | None = None) -> dict[str, Any] | None:
        """The next document; None at the end.

        It may begin after ``idle_s`` at the latest and must be complete ``within_s`` later (TimeoutError).
        """
        deadline: float | None = None
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if len(self._buffer) > self._bytes_max:
                raise InvalidInput(f"more than {self._bytes_max} bytes in one line")
            if self._buffer and deadline is None and within_s is not None:
                deadline = time.monotonic() + within_s
            wait_s = idle_s if deadline is None else deadline - time.monotonic()
            if wait_s is not None and wait_s <= 0:
                raise TimeoutError
            self.socket.settimeout(wait_s)
            part = self.socket.recv(65_536)
            if not part:
                return None
            self._buffer += part
        self.socket.settimeout(None)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"a line that is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise InvalidInput("a line that is no JSON object")
        return document


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """The path as the system takes it. One that is too long is reached through its open folder."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir() or len(os.fsencode(path.name)) > 60:
        raise ConfigError(f"control.path is too long for a socket; choose a shorter one: {path}")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def is_socket(path: Path) -> bool:
    """Whether a socket stands there, alive or not."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def dial(path: Path, timeout_s: float = 5.0) -> socket.socket | None:
    """Connect to a server's socket; None if nobody listens there."""
    if not is_socket(path):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        with address(path) as name:
            sock.connect(name)
        return sock
    except (ConnectionRefusedError, FileNotFoundError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise StoreUnavailable(f"cannot reach the server at {path}: {error.strerror or error}") from error


def listen(path: Path, backlog: int = 16) -> socket.socket:
    """Listen there, for the owner alone. What a dead server left is removed; a living one is respected."""
    if is_socket(path):
        alive = dial(path)
        if alive is not None:
            alive.close()
            raise ConfigError(f"another server answers at {path}; give this one a control.path of its own")
        path.unlink(missing_ok=True)
    elif path.exists() or path.is_symlink():
        raise ConfigError(f"control.path is taken by something that is no socket: {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(path) as name:
            sock.bind(name)
            # Before listen() nobody can connect, so there is no moment at which others could.
            os.chmod(name, 0o600)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen at {path}: {error.strerror or error}") from error
    return sock
