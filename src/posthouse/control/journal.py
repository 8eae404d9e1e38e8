"""Operations on the journal: export, verify, recent events, and the history of one message.

Also the exporter that a server runs: often enough to keep the store small, rarely enough for few files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ..errors import InvalidInput, MissingExtra
from ..journal import feed, schema, segment
from ..journal.finding import Finding
from ..journal.history import history
from ..journal.schema import Row
from ..journal.tail import Exported, export
from ..journal.verify import verify
from ..mailbox import event as ev
from ..mailbox.message import SECOND, Instant, check_name
from ..mailbox.store import Chunk, Segment, Store
from . import view
from .operation import PAGE_MAX, Access, Answer, Context, Json, Refused, Stopped, operation

CLOCK_SLACK_US = 3_600 * SECOND
"""How far behind its post an event of a message may be dated before all segments are searched for it."""


class Feed:
    """The journal's side of a store whose changes wait their turn on the writer's thread."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def node(self) -> str:
        """The store's name."""
        return self._access.store.node

    def offset(self) -> int:
        """The journal's last offset."""
        return self._access.store.offset()

    def chunks(self, after: int = 0) -> Iterator[Chunk]:
        """Journal chunks whose last offset is above ``after``."""
        return self._access.store.chunks(after)

    def segments(self) -> list[Segment]:
        """Exported segments and at most one planned."""
        return self._access.store.segments()

    def plan_segment(self, last: int) -> Segment:
        """Commit the boundary of the next segment."""
        return self._access.maintain(lambda store: store.plan_segment(last))

    def finish_segment(self, segment: Segment) -> None:
        """Record that it is on disk, and trim its chunks."""

        for hook in self._access.before_trim:
            hook()

        def finish(store: Store) -> None:
            store.finish_segment(segment)

        self._access.maintain(finish)


@operation("journal.export")
def export_now(context: Context) -> Answer:
    """Export all that is committed, however little it is."""
    done = export(
        Feed(context.access),
        context.config.path("journal.dir"),
        final=True,
        progress=lambda events, total: context.report(events, total, "exporting"),
    )
    return {
        "node": context.store.node,
        "segments": [str(path) for path in done.paths],
        "events": done.events,
        "left": done.left,
    }


@operation("journal.verify")
def verify_now(context: Context) -> Answer:
    """Check every chunk and every segment, and that they follow each other."""
    found = verify(
        Feed(context.access),
        context.config.path("journal.dir"),
        progress=lambda events, total: context.report(events, total, "verifying"),
    )
    return {
        "node": context.store.node,
        "chunks": found.chunks,
        "segments": found.segments,
        "events": found.events,
        "findings": [_finding(each) for each in found],
        "ok": not found,
    }


@operation("journal.events")
def events(context: Context, *, after: int | None = None, last: int | None = None, limit: int = PAGE_MAX) -> Answer:
    """Events behind offset ``after``, or the ``last`` so many; from segments where the store has them no more."""
    limit = min(limit, PAGE_MAX)
    offset = context.store.offset()
    if last is not None:
        if after is not None or last < 0:
            raise InvalidInput("either after or last, 0 or more")
        after = offset - min(last, limit)
    start = max(after or 0, 0)
    rows = list(_rows(context, start, min(start + limit, offset)))
    return {
        "events": [_row(row) for row in rows],
        "next": rows[-1].offset if rows else start,
        "offset": offset,
    }


def _rows(context: Context, after: int, upto: int) -> Iterator[Row]:
    """Rows with offsets above ``after``, up to ``upto``."""
    store = context.store
    node = store.node
    home = Path(context.config.path("journal.dir")) / schema.folder_name(node)
    for each in store.segments():
        if not each.chain or each.last <= after or each.first > upto:
            continue
        path = home / schema.file_name(each.first, each.last)
        if not path.exists():
            continue
        try:
            for row in segment.read(path):
                if after < row.offset <= upto:
                    yield row
        except MissingExtra:
            # Without pyarrow there is still what the store holds itself.
            break
        after = max(after, min(each.last, upto))
    with closing(feed.read(store, after)) as chunks:
        for chunk in chunks:
            for offset, event in enumerate(feed.decode(node, chunk), chunk.first):
                if offset > upto:
                    return
                if offset > after:
                    yield Row._make(schema.row_values(node, offset, chunk.first, event))


@operation("message.history")
def message_history(
    context: Context, *, id: str, desk: str | None = None, mailbox: str | None = None, sender: str | None = None
) -> Answer:
    """All that the journal tells of the messages with this id, in order, and what was posted in answer to them."""
    check_name("id", id)
    posted = [view.posted_at for view in context.store.find(id)]
    # Events of a message stand behind its post, but for clocks that were set back meanwhile.
    since = min(posted) - CLOCK_SLACK_US if posted else None
    rows, effects, findings = _history(context, id, desk, mailbox, sender, since)
    if since is not None and any(row.event != ev.POSTED for row in _firsts(rows)):
        rows, effects, findings = _history(context, id, desk, mailbox, sender, None)
    if not rows and not findings:
        return Refused("not_found", f"the journal tells nothing of a message {id!r}")
    return {
        "id": id,
        "events": [_row(row) for row in rows],
        "effects": [_row(row) for row in effects],
        "findings": [_finding(each) for each in findings],
    }


def _history(
    context: Context, id: str, desk: str | None, mailbox: str | None, sender: str | None, since: Instant | None
) -> tuple[list[Row], list[Row], list[Finding]]:
    effects: list[Row] = []
    findings: list[Finding] = []
    folder = context.config.path("journal.dir")
    rows = history(context.store, folder, id, desk, mailbox, sender, findings=findings, effects=effects, since=since)
    return rows, effects, findings


def _firsts(rows: list[Row]) -> list[Row]:
    """The first row of each message in each node; what was refused is none."""
    firsts: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        if row.event not in (ev.REFUSED, ev.DUPLICATE):
            firsts.setdefault((row.node, row.desk, row.mailbox, row.sender), row)
    return list(firsts.values())


def _row(row: Row) -> Json:
    plain: dict[str, Any] = row._asdict()
    for name in ("at", "due_at", "expires_at"):
        plain[name] = view.instant_or_none(plain[name])
    return plain


def _finding(found: Finding) -> Json:
    return {"kind": str(found.kind), "where": found.where, "detail": found.detail}


class Exporter:
    """Exports now and then. A segment is written when it is large enough or its oldest event waited long."""

    def __init__(
        self, access: Access, folder: Path, wait_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._feed = Feed(access)
        self._folder = folder
        self._wait_s = wait_s
        self._monotonic = monotonic
        self._waiting_since: float | None = None
        self._stopping = False

    def stop(self) -> None:
        """End the turn under way soon, by Stopped; the next process goes on where it ended."""
        self._stopping = True

    def run(self) -> Exported:
        """One turn."""
        now = self._monotonic()
        waited = self._waiting_since is not None and now - self._waiting_since >= self._wait_s
        done = export(self._feed, self._folder, final=waited, progress=self._progress)
        if not done.left:
            self._waiting_since = None
        elif done.events or self._waiting_since is None:
            self._waiting_since = now
        return done

    def _progress(self, events: int, total: int) -> None:
        if self._stopping:
            raise Stopped(f"stopped after {events} of {total} events")
