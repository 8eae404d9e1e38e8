"""Exporting: tails the chunks of a store into segments, and lets the store trim what is exported.

In: a store's chunks. Out: ``<folder>/node=<node>/<first>-<last>.parquet``, whole commits only.
A run may end at any point, however it ends: the next one goes on and the files are the same.

    plan (committed) → temporary file → synced → renamed → folder synced → finish (recorded, trimmed)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import InvalidInput, StoreCorrupt, StoreError, StoreHeld
from ..mailbox.store import Segment
from . import feed, schema, segment
from .feed import JournalSource
from .finding import Progress
from .schema import RowValues

SEGMENT_EVENTS = 500_000
MIN_EVENTS = 50_000
TELL_EVENTS = 10_000
"""How often progress is told of."""


class Exported(NamedTuple):
    """What one run did."""

    paths: tuple[Path, ...]
    """The segments that it finished."""
    events: int
    left: int
    """Events of the store, when the run began, that are not in a segment yet."""


def export(
    source: JournalSource,
    folder: str | os.PathLike[str],
    *,
    segment_events: int = SEGMENT_EVENTS,
    min_events: int = MIN_EVENTS,
    final: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Export what the store has committed by now.

    A segment holds at most ``segment_events`` events, or one commit if that alone is larger. What remains
    becomes a segment of its own from ``min_events`` on, or however little it is if ``final``.
    A broken chunk is never exported: what comes before it is, then StoreCorrupt names it.
    """
    if segment_events < 1 or min_events < 1:
        raise InvalidInput("segment_events and min_events must be 1 or more")
    segment.arrow()  # Before anything is planned.
    node = source.node
    home = Path(folder) / schema.folder_name(node)
    least = 1 if final else min(min_events, segment_events)
    paths: list[Path] = []
    done = told = 0

    def tell(events: int) -> None:
        nonlocal done, told
        done += events
        if progress is not None and (done - told >= TELL_EVENTS or done == total):
            told = done
            progress(done, total)

    with _held(home):
        # What is committed later is for the next run: a busy store must not keep this one for ever.
        upto = source.offset()
        last, planned = _standing(source)
        total = upto - last.last
        # The hash that the next chunk follows is known only from the second segment of a run on.
        prev: bytes | None = None
        while True:
            if planned is None:
                boundary = _boundary(source, last.last, upto, prev, segment_events, least)
                if boundary is None:
                    return Exported(tuple(paths), done, upto - last.last)
                planned = source.plan_segment(boundary)
                if planned.last != boundary:
                    raise StoreError(f"node {node}: asked for a segment up to {boundary}, the store planned {planned}")
            _check_plan(node, last, planned)
            rows = _Rows(source, planned, prev, tell)
            stamp = segment.Stamp(node, planned.first, planned.last, planned.prev, "")
            with closing(rows.values()) as values:
                written = segment.write(home, stamp, values)
            last, prev, planned = planned._replace(chain=written.chain), rows.prev, None
            source.finish_segment(last)
            paths.append(written.path)


def _standing(source: JournalSource) -> tuple[Segment, Segment | None]:
    """The last finished segment (offset 0 where there is none) and the planned one."""
    last = Segment(0, 0, "", schema.GENESIS)
    planned = None
    for found in source.segments():
        if planned is not None:
            raise StoreCorrupt(f"node {source.node}: a segment is recorded after a planned one: {found}")
        _check_plan(source.node, last, found)
        if found.chain:
            last = found
        else:
            planned = found
    return last, planned


def _check_plan(node: str, last: Segment, following: Segment) -> None:
    if following.first != last.last + 1 or following.last < following.first or following.prev != last.chain:
        raise StoreCorrupt(
            f"node {node}: the store's segment {following.first}-{following.last} does not follow "
            f"the one that ends at offset {last.last}"
        )


def _boundary(
    source: JournalSource, after: int, upto: int, prev: bytes | None, segment_events: int, least: int
) -> int | None:
    """Where the next segment ends, None if it is not time for one."""
    if upto - after < least:
        return None
    end = after
    try:
        with closing(feed.checked(source, after, upto, prev)) as chunks:
            for chunk in chunks:
                if chunk.last - after > segment_events:
                    # Full; a commit that is larger than a segment is one by itself.
                    return end if end > after else chunk.last
                end = chunk.last
    except StoreCorrupt:
        # What is sound is brought to safety first; the next look begins at the broken chunk and raises.
        if end > after:
            return end
        raise
    return end if end - after >= least else None


class _Rows:
    """The rows of a planned segment; ``prev`` is the hash of the last chunk that they came from."""

    def __init__(
        self, source: JournalSource, planned: Segment, prev: bytes | None, tell: Callable[[int], None]
    ) -> None:
        self.source = source
        self.planned = planned
        self.prev = prev
        self.tell = tell

    def values(self) -> Generator[RowValues, None, None]:
        node = self.source.node
        with closing(feed.checked(self.source, self.planned.first - 1, self.planned.last, self.prev)) as chunks:
            for chunk in chunks:
                events = feed.decode(node, chunk)
                for offset, event in enumerate(events, chunk.first):
                    yield schema.row_values(node, offset, chunk.first, event)
                self.prev = chunk.hash
                self.tell(len(events))


@contextmanager
def _held(home: Path) -> Iterator[None]:
    """The node's folder, made if need be, freed of what a broken run left, and closed to a second export."""
    try:
        _make(home)
        handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"cannot use {home}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreHeld(f"another export is writing to {home}") from None
        except OSError:
            # Some network file systems lock no folders; there the store alone keeps two exports apart.
            pass
        for name in os.listdir(home):
            if segment.is_temporary(name):
                (home / name).unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def _make(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    segment.sync_folder(folder.parent)
