"""A sign that somebody is at work on a lake in an object store, where no lock can be had.

In: a lake, and what is done there. Out: a small file beside the lake's record that is renewed while the work goes on;
StoreHeld where somebody else's is. It only spares others work in vain. Nothing is right because of it: clocks may
differ and two may come at one moment, and then the record decides (``record``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import orjson

from ..errors import StoreHeld
from . import bronze

NAME = "at-work.json"
BEAT_S = 20.0
"""How often a sign is renewed."""
SILENT_S = 90.0
"""Who has not renewed his sign for so long is taken for dead."""


def who(doing: str) -> str:
    """This process, for whoever is refused because of it."""
    return f"books {doing} (process {os.getpid()} on {socket.gethostname()})"


class Sign:
    """The sign of one who is at work."""

    def __init__(self, place: str, folder: str, doing: str) -> None:
        self._place = place
        self._system, root = bronze.open_place(place)
        self._folder = f"{root}/{folder}"
        self._path = f"{self._folder}/{NAME}"
        self._own = uuid.uuid4().hex
        self._name = who(doing)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it until the end; StoreHeld names the other whose sign is there."""
        found = self._read()
        if abs(time.time() - found.get("at", 0)) < SILENT_S:
            raise StoreHeld(f"{found.get('name')} is at work on the lake {self._place}")
        self._put()
        ended = threading.Event()
        beat = threading.Thread(target=self._renew, args=(ended,), name="books-sign", daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join()
            if self._read().get("who") == self._own:
                with contextlib.suppress(OSError):
                    self._system.delete_file(self._path)

    def _renew(self, ended: threading.Event) -> None:
        # Until another takes this one for dead, and shows his own.
        while not ended.wait(BEAT_S) and self._read().get("who", self._own) == self._own:
            self._put()

    def _read(self) -> dict[str, Any]:
        """What is there; nothing if it cannot be read."""
        try:
            with self._system.open_input_stream(self._path) as file:
                found = orjson.loads(file.read())
        except (OSError, orjson.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _put(self) -> None:
        """Where nothing can be written, the record cannot be either, and says so."""
        text = orjson.dumps({"who": self._own, "name": self._name, "at": time.time()})
        with contextlib.suppress(OSError):
            self._system.create_dir(self._folder)
            with self._system.open_output_stream(self._path) as file:
                file.write(text)
