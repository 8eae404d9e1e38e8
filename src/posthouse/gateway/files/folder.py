"""The folder of such files: listing them, and making it what it should be.

In: images of messages. Out: files, each written under a temporary name and renamed, readable by their owner alone. It
touches only files that stand for messages of this store. What is on disk follows the store, so nothing is synced here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import ConfigError, InvalidInput
from ...mailbox.message import Ref
from .. import strict
from ..importing.entry import Queue, Unfit
from ..importing.files import FOLDERS, read_file
from ..importing.letters import marked
from ..letter import Json
from .layout import PLACES, Image

QUEUE = FOLDERS[Queue.OUTBOUND]


class Found(NamedTuple):
    """A file in the folder."""

    stem: str
    place: str
    ref: Ref | None
    """The message of ours that it stands for."""


class Folder:
    """A state folder with a queue in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue = path / QUEUE

    def make(self) -> None:
        """Make what is not there; ConfigError if that cannot be."""
        try:
            for place in PLACES:
                (self._queue / place).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"gateway.files_dir cannot be used: {error.strerror}: {self._queue}") from error

    def names(self) -> frozenset[tuple[str, int]]:
        """The waiting files, each with the time at which it was written."""
        found = set()
        try:
            with os.scandir(self._queue) as entries:
                for entry in entries:
                    if entry.name.endswith(".json"):
                        found.add((entry.name.removesuffix(".json"), entry.stat(follow_symlinks=False).st_mtime_ns))
        except FileNotFoundError:
            pass
        return frozenset(found)

    def files(self) -> Iterator[Found]:
        """Every file that can be read, and whose it is."""
        for place in PLACES:
            try:
                names = sorted(os.listdir(self._queue / place))
            except FileNotFoundError:
                continue
            for name in names:
                if name.endswith(".json"):
                    stem = name.removesuffix(".json")
                    yield Found(stem, place, self._ref(stem, place))

    def _ref(self, stem: str, place: str) -> Ref | None:
        try:
            return marked(_fields(read_file(self._file(stem, place))))
        except (OSError, Unfit, InvalidInput):
            return None

    def show(self, image: Image, ref: Ref, digest: str | None = None) -> None:
        """Make the files of one message what they should be.

        ``digest``: that of the file which the message was imported from; it is ours too, as long as it is unchanged.
        """
        for place in PLACES:
            if place != image.place and self._is_ours(image.stem, place, ref, digest):
                self._remove(image.stem, place, image.sent)
        if image.place is None:
            return
        path = self._file(image.stem, image.place)
        if os.path.lexists(path):
            if not self._is_ours(image.stem, image.place, ref, digest):
                return
            if _fields(read_file(path)) == image.fields:
                return
        temporary = self._queue / f".{QUEUE}.{os.getpid()}.{image.stem}.tmp"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "w", encoding="utf-8") as opened:
            json.dump(image.fields, opened, indent=2, ensure_ascii=False)
        os.replace(temporary, path)

    def _is_ours(self, stem: str, place: str, ref: Ref, digest: str | None) -> bool:
        try:
            data = read_file(self._file(stem, place))
            found = marked(_fields(data))
        except (OSError, Unfit, InvalidInput):
            return False
        if found is not None:
            return found == ref
        return digest is not None and hashlib.sha256(data).hexdigest() == digest

    def remove(self, found: Found) -> None:
        """Remove one of our files."""
        self._remove(found.stem, found.place, sent=False)

    def _remove(self, stem: str, place: str, sent: bool) -> None:
        path = self._file(stem, place)
        try:
            if sent:
                # As OpenClaw does: whoever finds it between the two steps knows that it was sent.
                path = path.rename(path.with_suffix(".delivered"))
            path.unlink()
        except FileNotFoundError:
            pass

    def _file(self, stem: str, place: str) -> Path:
        return self._queue / place / f"{stem}.json"


def _fields(data: bytes) -> Json:
    value = strict.loads(data)
    if not isinstance(value, dict):
        raise InvalidInput("not a JSON object")
    return value
