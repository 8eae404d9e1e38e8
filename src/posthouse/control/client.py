"""The client's side of the control socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import InvalidInput, PosthouseError, StoreUnavailable
from . import socket as wire
from .operation import Answer, Refused, Stopped

HELLO_S = 10.0

Report = Callable[[int, int | None, str], None]


def _by_code() -> dict[str, type[PosthouseError]]:
    found: dict[str, type[PosthouseError]] = {Stopped.code: Stopped}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, PosthouseError):
            found[kind.code] = kind
    return found


class Client:
    """A connection to the server that holds a store."""

    def __init__(self, path: Path, lines: wire.Lines) -> None:
        self._path = path
        self._lines = lines
        self._id = 0
        hello = self._receive(HELLO_S)
        if hello.get("posthouse") != wire.PROTOCOL:
            self.close()
            raise StoreUnavailable(f"the server at {path} speaks another protocol; use its own version's command")
        self.store = str(hello.get("store"))
        self.pid = hello.get("pid")

    @classmethod
    def connect(cls, path: Path) -> Client | None:
        """The server that answers at this socket; None if there is none."""
        sock = wire.dial(path)
        if sock is None:
            return None
        try:
            return cls(path, wire.Lines(sock, wire.REPLY_BYTES_MAX))
        except BaseException:
            sock.close()
            raise

    def call(self, name: str, parameters: Mapping[str, Any], report: Report) -> Answer:
        """Ask for an operation and wait for its answer; errors come back as what they were."""
        self._id += 1
        request = {"id": self._id, "call": name, "with": dict(parameters)}
        try:
            self._lines.send(request, wire.REQUEST_BYTES_MAX)
        except OSError as error:
            raise StoreUnavailable(f"the server at {self._path} is gone: {error.strerror or error}") from error
        while True:
            reply = self._receive(None)
            if "progress" in reply:
                done, total, doing = reply["progress"]
                report(done, total, doing)
            elif "refused" in reply:
                return Refused(**reply["refused"])
            elif "result" in reply:
                result: Answer = reply["result"]
                return result

    def _receive(self, timeout_s: float | None) -> dict[str, Any]:
        try:
            reply = self._lines.receive(timeout_s, timeout_s)
        except TimeoutError:
            raise StoreUnavailable(f"the server at {self._path} does not answer") from None
        except (OSError, InvalidInput) as error:
            raise StoreUnavailable(f"the server at {self._path} answered strangely: {error}") from error
        if reply is None:
            raise StoreUnavailable(f"the server at {self._path} ended the connection")
        if "error" in reply:
            code, message = str(reply["error"].get("code")), str(reply["error"].get("message"))
            raise _by_code().get(code, PosthouseError)(message)
        return reply

    def close(self) -> None:
        """Hang up."""
        self._lines.socket.close()
