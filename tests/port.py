"""Ports for servers that a test starts later, or again: nobody else is given them meanwhile."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
_HIGHEST = 32_768
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of the loopback that is free.

    It is none of those that the system gives to connections and to listeners that ask for any: one of these would be
    somebody else's before it is listened on, or between the end of a server and its next start.
    """
    highest = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _HIGHEST
    # Processes that test side by side draw for themselves, whatever else is seeded.
    drawn = random.SystemRandom()
    while True:
        port = drawn.randrange(LOWEST, max(highest, LOWEST + 1_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
