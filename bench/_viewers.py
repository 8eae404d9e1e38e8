"""Viewers of the live overview, in a process of their own: sockets that are read once a second, and nothing else.

Run as a script: `_viewers.py HOST PORT COUNT`, with the token in TOKEN. It prints a line when all look, and, when its
input ends, how many snapshots the least lucky of them saw and what processor time it took from the one line to the
other. A real viewer sits at another machine, so what he does with what he is told is no part of it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

EVERY_S = 1.0
DEADLINE_S = 20.0
MARK = b"\ndata: "
"""What each snapshot has once."""


class Viewer:
    """One connection, and what came of it."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._socket = socket.create_connection((host, port), timeout=DEADLINE_S)
        head = f"Host: {host}:{port}\r\nAuthorization: Bearer {token}\r\nAccept: text/event-stream\r\n"
        self._socket.sendall(f"GET /api/v1/live HTTP/1.1\r\n{head}\r\n".encode())
        self._socket.setblocking(False)
        self._end = b""
        self.seen = 0

    def read(self) -> None:
        """Take what has come."""
        try:
            while data := self._socket.recv(65_536):
                # A mark may come in pieces.
                data = self._end + data
                self.seen += data.count(MARK)
                self._end = data[1 - len(MARK) :]
        except BlockingIOError:
            return
        raise SystemExit(f"a viewer was let go: {self._end!r}")


def main(host: str, port: int, count: int) -> None:
    viewers = [Viewer(host, port, os.environ["TOKEN"]) for _ in range(count)]
    until = time.monotonic() + DEADLINE_S
    while not all(viewer.seen for viewer in viewers):
        if time.monotonic() > until:
            raise SystemExit("not everybody is told something")
        select.select([], [], [], 0.05)
        for viewer in viewers:
            viewer.read()
    begun_s = time.process_time()
    print("all look", flush=True)
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        for viewer in viewers:
            viewer.read()
    spent_s = time.process_time() - begun_s
    for viewer in viewers:
        viewer.read()
    print(min(viewer.seen for viewer in viewers), spent_s, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
