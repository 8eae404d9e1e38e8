"""Notes: who came and went, as the journal tells it, from segments of late.

In: a journal's folder, a node, an instant. Out: connections that began and ended since then, in order, and starts,
which end all of them. Only a few columns are read. It needs pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreCorrupt
from ..mailbox.event import CONNECTED, DISCONNECTED, STARTED, Event
from ..mailbox.message import Instant
from . import schema, segment

KINDS = (CONNECTED, DISCONNECTED, STARTED)
FILES_MAX = 500
"""Segments that are looked at, the newest ones."""
EVENTS_MAX = 1_000_000
"""Events in them, at most."""
_COLUMNS = ("at", "event", "desk", "mailbox", "holder", "reason")


class Note(NamedTuple):
    """A fact about a connection, or a start."""

    at: Instant
    event: str
    desk: str
    mailbox: str
    holder: str | None
    reason: str | None


def of(events: Iterable[Event]) -> Iterator[Note]:
    """Those among events of the store."""
    for event in events:
        if event.event in KINDS:
            yield Note(event.at, event.event, event.desk, event.mailbox, event.holder, event.reason)


def seen(at: Instant) -> Note:
    """What tells only that there was a process at this instant."""
    return Note(at, "", "", "", None, None)


class Exported(NamedTuple):
    """What segments tell."""

    notes: list[Note]
    since: Instant | None
    """From when on they tell everything; None: there are none."""
    last: int
    """The last offset in them; 0: there are none."""


def exported(folder: Path, node: str, since: Instant) -> Exported:
    """Those of a node in its newest segments.

    A segment that cannot be read is left out: whoever verifies the journal tells of it.
    """
    place = folder / schema.folder_name(node)
    names: list[tuple[tuple[int, int], str]] = []
    if place.is_dir():
        names = sorted((range, name) for name in os.listdir(place) if (range := schema.offsets_of(name)) is not None)
    last = names[-1][0][1] if names else 0
    parts: list[list[Note]] = []
    begun: Instant | None = None
    seen = 0
    for (first, end), name in reversed(names[-FILES_MAX:]):
        seen += end - first + 1
        if seen > EVENTS_MAX:
            break
        try:
            notes, earliest = _in_segment(place / name, since)
        except StoreCorrupt:
            continue
        parts.append(notes)
        begun = max(earliest, since)
        if earliest < since:
            break
    return Exported([note for notes in reversed(parts) for note in notes], begun, last)


def _in_segment(path: Path, since: Instant) -> tuple[list[Note], Instant]:
    """Its notes since then, and the instant of its earliest event."""
    libraries = segment.arrow()
    pa, compute = libraries.pa, libraries.pc
    found: list[Note] = []
    earliest = since
    with segment.open_file(path) as file, segment.reading(path):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(_COLUMNS)).combine_chunks()
            at = compute.cast(table.column("at").cast(pa.timestamp("us", tz="UTC")), pa.int64())
            if not len(at):
                continue
            least = int(compute.min(at).as_py())
            earliest = least if group == 0 else min(earliest, least)
            table = table.set_column(table.schema.get_field_index("at"), "at", at)
            of_late = compute.greater_equal(at, since)
            wanted = compute.and_(of_late, compute.is_in(table.column("event"), value_set=pa.array(KINDS)))
            instants = at.to_numpy()
            places = compute.indices_nonzero(wanted)
            for place, row in zip(places.to_pylist(), table.take(places).to_pylist(), strict=True):
                if row["event"] == STARTED and place:
                    # How long the process before was there, the last thing that it did tells.
                    found.append(seen(int(instants[place - 1])))
                found.append(Note(**row))
            found.append(seen(int(instants[-1])))
    return found, earliest
