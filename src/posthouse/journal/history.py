"""Histories: all that the journal tells of one message, from the store's chunks and from segments.

In: an id, and a store, a folder of segments, or both. Out: rows in order, each once.
It needs pyarrow only where there are segments to read.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import StoreCorrupt
from ..mailbox.event import POSTED
from ..mailbox.message import SECOND, Instant
from ..mailbox.store import Chunk
from . import feed, schema, segment
from .feed import ChunkSource
from .finding import Finding, Kind
from .schema import NAMES, Row

HistoryRow = Row


def history(
    source: ChunkSource | None,
    folder: str | os.PathLike[str] | None,
    id: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
    *,
    findings: list[Finding] | None = None,
    effects: list[HistoryRow] | None = None,
    since: Instant | None = None,
) -> list[HistoryRow]:
    """Every row of the messages with this id, by node (the one that speaks first comes first) and offset.

    The folder's other nodes are searched too: a restored store goes on under a new name.
    A damaged chunk or segment raises StoreCorrupt; with ``findings`` it is noted there and passed over.
    ``effects`` is given what was posted in answer to a message with this id. ``since``: segments that end before it
    need not be searched for the first row.
    """
    rows: dict[tuple[str, int], Row] = {}
    caused: dict[tuple[str, int], Row] = {}

    begun: set[Path] = set()

    def take(where: str, search: Callable[[], list[Row]]) -> bool:
        found: list[Row] = []
        try:
            found = search()
            for row in found:
                if row.message_id != id:
                    caused[row.node, row.offset] = row
                elif desk in (None, row.desk) and mailbox in (None, row.mailbox) and sender in (None, row.sender):
                    known = rows.setdefault((row.node, row.offset), row)
                    if known != row:
                        raise StoreCorrupt(f"{where} differs from another place in offset {row.offset}")
        except StoreCorrupt as error:
            if findings is None:
                raise
            findings.append(Finding(Kind.UNREADABLE, where, str(error).removeprefix(f"{where} ")))
        return bool(found)

    # Chunks first: those that are exported and trimmed meanwhile are then found in segments.
    if source is not None:
        node = source.node
        with closing(feed.read(source, 0)) as chunks:
            for chunk in chunks:
                take(feed.place(node, chunk), partial(_in_chunk, node, chunk, id))
    if folder is not None:
        for path in _segments(Path(folder)):
            # Behind a node's first row nothing is skipped: a clock that was set back dates what follows before it.
            begin = None if path.parent in begun else since
            if take(str(path), partial(_in_segment, path, id, begin, effects is not None)):
                begun.add(path.parent)

    if effects is not None:
        effects += sorted(caused.values(), key=lambda row: (row.at, row.node, row.offset))
    first_at: dict[str, int] = {}
    for row in rows.values():
        first_at[row.node] = min(row.at, first_at.get(row.node, row.at))
    return sorted(rows.values(), key=lambda row: (first_at[row.node], row.node, row.offset))


def _in_chunk(node: str, chunk: Chunk, id: str) -> list[Row]:
    """The rows of this id in a chunk, and the posts that answer it. Most chunks lack it, and are not parsed."""
    try:
        if not feed.may_hold(chunk, id):
            return []
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{feed.place(node, chunk)} cannot be read: {error.__cause__}") from error
    return [
        Row._make(schema.row_values(node, offset, chunk.first, event))
        for offset, event in enumerate(feed.decode(node, chunk), chunk.first)
        if event.message_id == id or (event.cause_id == id and event.event == POSTED)
    ]


def _segments(folder: Path) -> Iterator[Path]:
    """Every segment of a journal; none where there is no such folder yet."""
    if not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        if schema.node_of(name) is not None and (folder / name).is_dir():
            for each in sorted(os.listdir(folder / name)):
                if schema.offsets_of(each) is not None:
                    yield folder / name / each


def _in_segment(path: Path, id: str, since: Instant | None, effects: bool) -> list[Row]:
    """The rows of this id in a segment, and the posts that answer it: row groups that cannot hold it are skipped, of
    the others only the ids are read, and whole rows only where one is the id."""
    found: list[Row] = []
    compute = segment.arrow().pc
    with segment.open_file(path) as file, segment.reading(path):
        names = file.schema_arrow.names
        columns = {name: names.index(name) for name in ("message_id", "cause_id", "at")}
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            if since is not None and _is_before(about.column(columns["at"]).statistics, since):
                continue
            searched = ("message_id", "cause_id") if effects else ("message_id",)
            held = [name for name in searched if _may_hold(about.column(columns[name]).statistics, id)]
            if not held:
                continue
            ids = file.read_row_group(group, columns=held)
            if any(compute.any(compute.equal(ids.column(name), id)).as_py() for name in held):
                table = file.read_row_group(group, columns=list(NAMES))
                own = compute.equal(table.column("message_id"), id)
                caused = compute.and_(
                    compute.equal(table.column("cause_id"), id), compute.equal(table.column("event"), POSTED)
                )
                mask = compute.or_(own, compute.fill_null(caused, False))
                found += map(Row._make, segment.values_of(table.filter(mask)))
    return found


def _is_before(statistics: Any, since: Instant) -> bool:
    if statistics is None or not statistics.has_min_max:
        return False
    last = statistics.max
    return isinstance(last, datetime.datetime) and last.timestamp() * SECOND < since


def _may_hold(statistics: Any, id: str) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    low, high = statistics.min, statistics.max
    # Parquet orders text by its UTF-8 bytes, which is the order of code points that Python has.
    return not (isinstance(low, str) and isinstance(high, str)) or low <= id <= high
