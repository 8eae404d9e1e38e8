"""What roles keep beside the messages: a shelf, a key, some bytes.

In: Keep commands, and questions by shelf. Out: rows that carry a check. No event is written: these facts
are no message's state, and no message's state depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isal import isal_zlib

from ...errors import StoreCorrupt
from ...mailbox.command import Keep
from ...mailbox.outcome import Kept, Outcome
from .operating import Operating


class Keeping(Operating):
    """Applies Keep."""

    def _keep(self, command: Keep) -> Outcome:
        work = self.work
        place = (command.shelf, command.key)
        changed = work.dirty_kept
        if place in changed:
            if changed[place] == command.value:
                return Kept(False)
        else:
            row = _row(work.db, *place)
            # A damaged row is no reason to keep it: what comes takes its place.
            if (row is None and command.value is None) or (
                row is not None and row[0] == command.value and row[1] == _crc(*place, row[0])
            ):
                return Kept(False)
        self._tick(command.at)
        if work.undo is not None:
            missing, before = place not in changed, changed.get(place)

            def back() -> None:
                if missing:
                    del changed[place]
                else:
                    changed[place] = before

            work.undo.append(back)
        changed[place] = command.value
        return Kept(True)


def _crc(shelf: str, key: str, value: bytes) -> int:
    return isal_zlib.crc32(value, isal_zlib.crc32(f"{shelf}\n{key}".encode()))


def _row(db: Any, shelf: str, key: str) -> tuple[bytes, int] | None:
    rows = db.execute("SELECT value, row_crc FROM kept WHERE shelf = ? AND key = ?", (shelf, key)).fetchall()
    return rows[0] if rows else None


def write(db: Any, changed: Mapping[tuple[str, str], bytes | None]) -> None:
    """Write what a batch changed; the caller commits."""
    kept = [(*place, value, _crc(*place, value)) for place, value in sorted(changed.items()) if value is not None]
    if kept:
        db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", kept)
    gone = [place for place, value in changed.items() if value is None]
    if gone:
        db.executemany("DELETE FROM kept WHERE shelf = ? AND key = ?", gone)


def value(db: Any, shelf: str, key: str) -> bytes | None:
    """What a shelf holds under this key, None if nothing."""
    row = _row(db, shelf, key)
    return None if row is None else _checked(shelf, key, *row)


def page(db: Any, shelf: str, after: str, limit: int) -> list[tuple[str, bytes]]:
    """Keys above ``after`` with their values, in order."""
    rows = db.execute(
        "SELECT key, value, row_crc FROM kept WHERE shelf = ? AND key > ? ORDER BY key LIMIT ?", (shelf, after, limit)
    ).fetchall()
    return [(key, _checked(shelf, key, value, crc)) for key, value, crc in rows]


def damaged(db: Any) -> Iterator[tuple[str, str]]:
    """Shelf and key of every row that is not as it was written."""
    for shelf, key, value, crc in db.execute("SELECT shelf, key, value, row_crc FROM kept"):
        if _crc(shelf, key, value) != crc:
            yield shelf, key


def _checked(shelf: str, key: str, value: bytes, crc: int) -> bytes:
    if _crc(shelf, key, value) != crc:
        raise StoreCorrupt(f"what shelf {shelf!r} keeps under {key!r} is not what was written")
    return value
