"""The server's side of the control socket: a thread that accepts, and one for each client.

In: requests of the store's owner. Out: what the operations answer. It is for a handful of clients at a
time; requests are bounded in size and time, and a client that leaves stops the long operation it began.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import InvalidInput, PosthouseError, StoreUnavailable
from . import socket as wire
from .catalogue import run
from .operation import Access, Context, Refused, Stopped

CLIENTS_MAX = 16
IDLE_S = 300.0
WITHIN_S = 30.0
CLOSE_S = 5.0

_log = logging.getLogger("posthouse.control")


class ControlServer:
    """Answers operators' commands on a socket for as long as it is open."""

    def __init__(self, access: Access, config: Config, version: str = "") -> None:
        self.path: Path = config.path("control.path")
        self._access = access
        self._config = config
        self._hello = {
            "posthouse": wire.PROTOCOL,
            "version": version,
            "store": os.path.realpath(config.path("store.path")),
            "node": access.store.node,
            "pid": os.getpid(),
        }
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._listener: socket.socket | None = None
        self._inode: tuple[int, int] | None = None
        self._acceptor: threading.Thread | None = None

    def start(self) -> None:
        """Listen. ConfigError if the place cannot be had."""
        self._listener = wire.listen(self.path)
        status = os.lstat(self.path)
        self._inode = (status.st_dev, status.st_ino)
        self._acceptor = threading.Thread(
            target=self._accept, args=(self._listener,), name="posthouse-control", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Stop: no new clients, long operations end at their next step, the socket's file is removed."""
        self._stopping.set()
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            # A close alone would not wake the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        assert self._acceptor is not None
        self._acceptor.join(CLOSE_S)
        self._listener.close()
        with contextlib.suppress(OSError):
            status = os.lstat(self.path)
            if (status.st_dev, status.st_ino) == self._inode:
                self.path.unlink()
        with self._lock:
            clients = dict(self._clients)
        for sock in clients:
            with contextlib.suppress(OSError):
                # Its requests end here; the answer to the one under way can still be sent.
                sock.shutdown(socket.SHUT_RD)
        until = time.monotonic() + CLOSE_S
        for sock, thread in clients.items():
            thread.join(max(until - time.monotonic(), 0))
            with contextlib.suppress(OSError):
                # One that does not read its answer is not waited for any longer.
                sock.shutdown(socket.SHUT_RDWR)
        self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if not self._stopping.is_set():
                    _log.warning("the control socket cannot accept: %s", error)
                    self._stopping.wait(0.5)
                continue
            with self._lock:
                if len(self._clients) >= CLIENTS_MAX:
                    error_line = _error(None, StoreUnavailable(f"{CLIENTS_MAX} clients are connected; try again"))
                    with contextlib.suppress(OSError):
                        sock.settimeout(1.0)
                        wire.Lines(sock, 0).send(error_line)
                    sock.close()
                    continue
                thread = threading.Thread(target=self._serve, args=(sock,), name="posthouse-client", daemon=True)
                self._clients[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        lines = wire.Lines(sock, wire.REQUEST_BYTES_MAX)
        try:
            by = f"operator:{_user(sock)}"
            lines.send(self._hello)
            while not self._stopping.is_set() and (request := lines.receive(IDLE_S, WITHIN_S)) is not None:
                lines.send(self._answer(request, by, lines))
        except InvalidInput as error:
            # What cannot be read as a request leaves no place from which to go on.
            with contextlib.suppress(OSError):
                lines.send(_error(None, error))
        except (OSError, Stopped):
            pass  # The client left, or took too long.
        finally:
            with self._lock:
                self._clients.pop(sock, None)
            sock.close()

    def _answer(self, request: dict[str, Any], by: str, lines: wire.Lines) -> dict[str, Any]:
        id, name, parameters = request.get("id"), request.get("call"), request.get("with", {})
        if not isinstance(id, int) or not isinstance(name, str) or not isinstance(parameters, dict):
            return _error(None, InvalidInput('a request is {"id": number, "call": name, "with": {…}}'))

        def report(done: int, total: int | None, doing: str) -> None:
            if self._stopping.is_set():
                raise Stopped(f"the server is stopping; {doing} ended after {done}")
            try:
                lines.send({"id": id, "progress": [done, total, doing]})
            except OSError as error:
                raise Stopped("the client left") from error

        try:
            answer = run(Context(self._access, self._config, by, report), name, parameters)
        except PosthouseError as error:
            return _error(id, error)
        except Exception as error:
            # A mistake in an operation must not take the server's other work with it.
            _log.exception("operation %s failed", name[:80])
            return {"id": id, "error": {"code": "internal", "message": f"{type(error).__name__}: {error}"}}
        if isinstance(answer, Refused):
            return {"id": id, "refused": answer._asdict()}
        return {"id": id, "result": answer}


def _error(id: int | None, error: PosthouseError) -> dict[str, Any]:
    return {"id": id, "error": {"code": error.code, "message": str(error)}}


def _user(sock: socket.socket) -> str:
    """Who is at the other end, as the system says, not as he says."""
    uid = os.getuid()
    if hasattr(socket, "SO_PEERCRED"):
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid = struct.unpack("3i", credentials)[1]
    return user_name(uid)


def user_name(uid: int) -> str:
    """The account's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"
