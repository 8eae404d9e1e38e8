"""What a supervisor is told: that the server serves, and that it stops (systemd's notification protocol).

In: the socket that the supervisor names in NOTIFY_SOCKET. Out: one datagram for each state. Without such a socket
nothing is said, and a supervisor that does not listen stops nobody.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

_log = logging.getLogger("posthouse.up")

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def tell(environment: Mapping[str, str], state: str, status: str) -> bool:
    """Say how we are; False if there is nobody to say it to."""
    place = environment.get(VARIABLE, "")
    if not place.startswith(("/", "@")):
        return False
    # An abstract socket's name begins with a zero byte.
    address = f"\0{place[1:]}" if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(f"{state}\nSTATUS={status}\n".encode(), address)
    except OSError as error:
        _log.warning("the supervisor at %s was not told: %s", place, error.strerror or error)
        return False
    return True
