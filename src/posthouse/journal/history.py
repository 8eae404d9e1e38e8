"""Histories: all that the journal tells of one message, from the store's chunks and from segments.

In: an id, and a store, a folder of segments, or both. Out: rows in order, each once.
It needs pyarrow only where there are segments to read.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from ..errors import StoreCorrupt
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
) -> list[HistoryRow]:
    """Every row of the messages with this id, by node (the one that speaks first comes first) and offset.

    The folder's other nodes are searched too: a restored store goes on under a new name.
    A damaged chunk or segment raises StoreCorrupt; with ``findings`` it is noted there and passed over.
    """
    rows: dict[tuple[str, int], Row] = {}

    def take(where: str, search: Callable[[], list[Row]]) -> None:
        try:
            for row in search():
                if desk in (None, row.desk) and mailbox in (None, row.mailbox) and sender in (None, row.sender):
                    known = rows.setdefault((row.node, row.offset), row)
                    if known != row:
                        raise StoreCorrupt(f"{where} differs from another place in offset {row.offset}")
        except StoreCorrupt as error:
            if findings is None:
                raise
            findings.append(Finding(Kind.UNREADABLE, where, str(error).removeprefix(f"{where} ")))

    # Chunks first: those that are exported and trimmed meanwhile are then found in segments.
    if source is not None:
        node = source.node
        with closing(feed.read(source, 0)) as chunks:
            for chunk in chunks:
                take(feed.place(node, chunk), partial(_in_chunk, node, chunk, id))
    if folder is not None:
        for path in _segments(Path(folder)):
            take(str(path), partial(_in_segment, path, id))

    begun: dict[str, int] = {}
    for row in rows.values():
        begun[row.node] = min(row.at, begun.get(row.node, row.at))
    return sorted(rows.values(), key=lambda row: (begun[row.node], row.node, row.offset))


def _in_chunk(node: str, chunk: Chunk, id: str) -> list[Row]:
    """The rows of this id in a chunk. Most chunks lack it: its bytes are looked for before anything is parsed."""
    try:
        if orjson.dumps(id) not in zlib.decompress(chunk.data):
            return []
    except zlib.error as error:
        raise StoreCorrupt(f"{feed.place(node, chunk)} cannot be read: {error}") from error
    return [
        Row._make(schema.row_values(node, offset, chunk.first, event))
        for offset, event in enumerate(feed.decode(node, chunk), chunk.first)
        if event.message_id == id
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


def _in_segment(path: Path, id: str) -> list[Row]:
    """The rows of this id in a segment: row groups that cannot hold it are skipped, of the others only the
    ids are read, and whole rows only where one is the id."""
    found: list[Row] = []
    compute = segment.arrow().pc
    with segment.open_file(path) as file, segment.reading(path):
        column = file.schema_arrow.names.index("message_id")
        for group in range(file.num_row_groups):
            if not _may_hold(file.metadata.row_group(group).column(column).statistics, id):
                continue
            ids = file.read_row_group(group, columns=["message_id"]).column(0)
            mask = compute.equal(ids, id)
            if compute.any(mask).as_py():
                table = file.read_row_group(group, columns=list(NAMES)).filter(mask)
                found += map(Row._make, segment.values_of(table))
    return found


def _may_hold(statistics: Any, id: str) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    low, high = statistics.min, statistics.max
    # Parquet orders text by its UTF-8 bytes, which is the order of code points that Python has.
    return not (isinstance(low, str) and isinstance(high, str)) or low <= id <= high
