"""The lake's tables: columns, types and meanings, in one place.

In: nothing. Out: every table as columns with Spark SQL types, its key and its partitions; the data dictionary
(``docs/reference/books.md``) is made from it. It never imports Spark and never touches a file.

Layout of a lake: one Delta table per name under ``<lake>/<name>``. Tables with the column ``part`` keep what
may still change in ``part='open'``, which each batch replaces, and what is final in the parts named by UTC days,
to which batches only add. Columns in ``VOLATILE`` say how a row came to be; two lakes of the same journal are equal
if all others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SCHEMA_VERSION = 3
APP_ID = "posthouse-books"
"""Whose transactions a table counts: each batch is one, with its number."""

OPEN = "open"
"""The part that holds what may still change."""
BASE, MORE = "base", "more"
"""Parts of the open set itself, `carried`: all of it at some time, and what was put in the place of some since."""

DAY_US = 86_400_000_000
"""µs of a day."""
SPAN_MAX_US = 1_000 * DAY_US
"""How long something that goes on is told by hours or days: behind that is a clock that was far off."""

VOLATILE = frozenset({"revision", "batch"})
"""Columns that depend on how the journal was cut into batches."""

OUTCOMES = ("delivered", "dead", "expired", "cancelled", "refused", "uncertain", "open")
CLOSED = ("delivered", "dead", "expired", "cancelled", "refused")
"""Outcomes that only a redrive or late data can change."""

IDENTITY = ("node", "desk", "mailbox", "sender", "message_id")
"""The columns that name a message; the generation tells apart messages of one id."""

WAITS = ("in_flight", "parked", "paused", "offline", "backoff", "quiet", "lane", "idle")
"""Each instant between posted and finished goes to the first of these that applies."""

ANOMALIES: Mapping[str, str] = {
    "lost": "An orphan, or still waiting an hour or more past its expiry.",
    "journal_gap": "A range of offsets that no segment holds; withdrawn when a late segment fills it.",
    "lane_gap": "A missing range of lane_seq; names the next message.",
    "out_of_order": "While the message waited, a later one of its lane was leased or delivered.",
    "delivered_twice": "Delivered after it had been delivered.",
    "settled_after_finished": "Any other event after the message was finished, except duplicate, refused, redriven.",
    "delivered_after_expiry": "The delivering lease began at or after expires_at.",
    "answered_twice": "Posts of one desk with the same cause_id in more than one commit; names the cause.",
    "clock_back": "`at` is below the previous offset's.",
    "chain_broken": "A segment's rows do not give its chain, or its prev is not the chain before it.",
    "abandoned": "What a node wrote behind the snapshot that another goes on from; it is in `events` and nowhere else.",
    "bad_segment": "A file that could not be taken in, or only in part; `detail` names it and says why.",
}
FILE_ANOMALIES = ("journal_gap", "clock_back", "chain_broken", "abandoned", "bad_segment")
"""Found when segments are taken in; all others are found by the transforms."""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    type: str
    meaning: str


class Table(NamedTuple):
    """One table: what a row is, its columns, and the columns that name a row."""

    name: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    partitions: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in their order."""
        return tuple(column.name for column in self.columns)

    @property
    def stable(self) -> tuple[str, ...]:
        """The columns that do not depend on how the journal was cut into batches."""
        return tuple(name for name in self.names if name not in VOLATILE)

    @property
    def ddl(self) -> str:
        """The columns as Spark reads a schema."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)


_PART = Column("part", "string", "`open`, or the UTC day of the message's first event once nothing is due any more.")
_PART_OF_LIFE = Column("part", "string", f"{_PART.meaning} What an earlier batch told as over stays in its day.")
_BATCH = Column("batch", "bigint", "The batch that wrote the row.")
_NODE = Column("node", "string", "The store; one that was restored goes on under the name that it had first.")
_DESK = Column("desk", "string", "The desk, empty where there is none.")
_MAILBOX = Column("mailbox", "string", "The mailbox, empty where there is none.")
_LANE = Column("lane", "string", "The lane inside the mailbox.")
_SENDER = Column("sender", "string", "Who posted the message.")
_ID = Column("message_id", "string", "The message's id, empty where a row concerns none.")
_GENERATION = Column("generation", "int", "1, and one more for each later `posted` of the same id.")
_KIND = Column("kind", "string", "The message's type.")
_WINDOW = Column("window", "timestamp", "The beginning of the UTC hour.")

_DAY = Column("day", "date", "The UTC day of the hour.")

_MESSAGE = (*IDENTITY, "generation")

EVENTS = Table(
    "events",
    "an event, each (node, offset) once",
    ("node", "offset"),
    (
        Column("node", "string", "The store that wrote it."),
        Column("offset", "bigint", "Its place in the node's journal."),
        Column("at", "timestamp", "When the engine took the command."),
        Column("commit", "bigint", "The offset of the first event of the same commit."),
        Column("event", "string", "What happened."),
        _DESK,
        _MAILBOX,
        _LANE,
        Column("lane_seq", "bigint", "The message's number in its lane, 0 where it has none."),
        _ID,
        _KIND,
        _SENDER,
        Column("attempt", "int", "The attempt under way, or those counted so far."),
        Column("holder", "string", "The connection, peer, worker or operator that did it."),
        Column("size_bytes", "bigint", "The size of the body."),
        Column("reason", "string", "A stable code."),
        Column("error", "string", "The error's text as it came."),
        Column("due_at", "timestamp", "When the message may be leased."),
        Column("expires_at", "timestamp", "When the message passes."),
        Column("cause_id", "string", "The message that this one answers."),
        Column("detail", "string", "JSON where an event needs more."),
        Column("day", "date", "The UTC day of `at`."),
    ),
    ("day",),
)

MESSAGES = Table(
    "messages",
    "a message",
    _MESSAGE,
    (
        _PART,
        _NODE,
        _DESK,
        _MAILBOX,
        _LANE,
        _SENDER,
        _ID,
        _GENERATION,
        _KIND,
        Column("lane_seq", "bigint", "Its number in its lane, by the first that was said of it."),
        Column("size_bytes", "bigint", "The size of its body."),
        Column("posted_at", "timestamp", "When it was posted; null for an orphan and for what was only refused."),
        Column("first_leased_at", "timestamp", "When it was first leased."),
        Column("received_at", "timestamp", "When it first arrived at a holder."),
        Column("finished_at", "timestamp", "When its outcome came; null while it is open or uncertain."),
        Column("outcome", "string", "delivered, dead, expired, cancelled, refused, uncertain or open."),
        Column("reason", "string", "The reason code of the outcome, or of its last event where it is open."),
        Column("error", "string", "The last error's text."),
        Column("attempts", "int", "Attempts that count, over all lives."),
        Column("lives", "int", "1, and one more for each redrive."),
        Column("live", "boolean", "Delivered by the lease that was committed with its post."),
        Column("expires_at", "timestamp", "When it passes, by its last `posted`, `redriven` or `unparked`."),
        Column("cause_id", "string", "The message that it answers."),
        Column("cause_key", "bigint", "A number made of node, desk and cause, by which answers are found."),
        Column("orphan", "boolean", "It has events and no `posted`."),
        Column("key", "bigint", "A number made of what names the message, by which its row is found."),
        Column("commit", "bigint", "The offset of the first event of the commit that posted it."),
        Column("posted_offset", "bigint", "The offset of its `posted`; null where there is none."),
        Column("finished_offset", "bigint", "The offset of its outcome; null while it is open or uncertain."),
        Column("delivered_offset", "bigint", "The offset of the first `delivered` of its last life, counted or not."),
        Column("first_offset", "bigint", "The offset of its first event."),
        Column("last_offset", "bigint", "The offset of its last event."),
        Column("duplicates", "int", "Posts of it that were repeats."),
        Column("latency", "bigint", "Delivered − posted in µs, at least 0; null unless it was delivered."),
        Column("wait_in_flight", "bigint", "µs between posted and finished that it was leased."),
        Column("wait_parked", "bigint", "µs that it was set aside."),
        Column("wait_paused", "bigint", "µs that its mailbox or lane was paused."),
        Column("wait_offline", "bigint", "µs that nobody was connected to its mailbox."),
        Column("wait_backoff", "bigint", "µs until it was due again after a failed attempt."),
        Column(
            "wait_quiet",
            "bigint",
            "µs from its post on in which its lane was not quiet yet, by what its desk asked for.",
        ),
        Column("wait_lane", "bigint", "µs that one before it in its lane was unfinished."),
        Column("wait_idle", "bigint", "µs for which there was no reason but that nobody leased it."),
        Column("revision", "int", "1, and one more each time that late data changed the finished row."),
        _BATCH,
    ),
    ("part",),
)

ATTEMPTS = Table(
    "attempts",
    "a lease",
    ("node", "lease_offset"),
    (
        _PART_OF_LIFE,
        _NODE,
        _DESK,
        _MAILBOX,
        _LANE,
        _SENDER,
        _ID,
        _GENERATION,
        _KIND,
        Column("life", "int", "1, and one more after each redrive."),
        Column("attempt", "int", "The attempt's number; a released or recalled lease reuses it."),
        Column("holder", "string", "Who took the message."),
        Column("started_at", "timestamp", "When it was leased."),
        Column("received_at", "timestamp", "When it arrived at its holder."),
        Column("ended_at", "timestamp", "When the lease ended; null while it is under way."),
        Column("ended", "string", "The event that ended it, or `open`."),
        Column("reason", "string", "That event's reason code."),
        Column("error", "string", "That event's error."),
        Column("lease_offset", "bigint", "The offset of `leased`."),
        Column("end_offset", "bigint", "The offset of what ended it."),
        _BATCH,
    ),
    ("part",),
)

BOOKS = Table(
    "books",
    "an hour × desk × kind",
    ("window", "desk", "kind"),
    (
        _DAY,
        Column("window", "timestamp", "The UTC hour of `posted`; of the first event for orphans."),
        _DESK,
        _KIND,
        Column("posted", "bigint", "Messages posted: delivered + dead + expired + cancelled + uncertain + open."),
        Column("delivered", "bigint", "Of these, delivered."),
        Column("dead", "bigint", "Of these, dead."),
        Column("expired", "bigint", "Of these, expired."),
        Column("cancelled", "bigint", "Of these, cancelled."),
        Column("uncertain", "bigint", "Of these, of unknown outcome."),
        Column("open", "bigint", "Of these, not finished."),
        Column("refused", "bigint", "`refused` events of that hour; outside the sum."),
        Column("duplicate", "bigint", "`duplicate` events of that hour; outside the sum."),
        Column("remainder", "bigint", "Messages with an outcome that were never posted (orphans)."),
        Column("remainder_ids", "array<string>", "Their ids, sorted."),
        Column(
            "revision",
            "int",
            "1, and one more each time that late data changed a window after its hour, or that it was opened again.",
        ),
    ),
    ("day",),
)

ANOMALY = Table(
    "anomalies",
    "a finding",
    ("kind", *IDENTITY, "offsets"),
    (
        _PART_OF_LIFE,
        Column("kind", "string", "What was found; see Anomalies."),
        _NODE,
        _DESK,
        _MAILBOX,
        _SENDER,
        _ID,
        Column("at", "timestamp", "When the evidence was written; null where there is none."),
        Column(
            "offsets",
            "array<bigint>",
            "The offsets that prove it, rising; of a gap, its first and last. What concerns files has their own nodes"
            " and offsets; all else has those of the books, as table `restores` says.",
        ),
        Column("detail", "string", "What an operator needs to know besides."),
        _BATCH,
    ),
    ("part",),
)

LATENCY = Table(
    "latency",
    "an hour × desk × kind × live or stored",
    ("window", "desk", "kind", "live"),
    (
        _DAY,
        Column("window", "timestamp", "The UTC hour of `posted`."),
        _DESK,
        _KIND,
        Column("live", "boolean", "Live or stored."),
        Column("count", "bigint", "Messages delivered."),
        Column("p50", "bigint", "Median of delivered − posted in µs, within 2 %."),
        Column("p95", "bigint", "95th percentile in µs, within 2 %."),
        Column("p99", "bigint", "99th percentile in µs, within 2 %."),
        Column("max", "bigint", "The longest in µs, within 2 %: the middle of the last bucket that holds any."),
        Column("buckets", "map<int,bigint>", "The histogram: bucket → messages. Histograms add up."),
    ),
    ("day",),
)

DEPTH = Table(
    "depth",
    "an hour × desk, and × mailbox for the busiest of the hour",
    ("window", "node", "desk", "mailbox"),
    (
        _DAY,
        _WINDOW,
        _NODE,
        _DESK,
        Column("mailbox", "string", "The mailbox, empty for the whole desk."),
        Column("posted", "bigint", "Posted in that hour."),
        Column("finished", "bigint", "Finished in that hour."),
        Column("depth_max", "bigint", "The most messages that waited or were in flight at one time."),
        Column("depth_end", "bigint", "Messages unfinished at its end."),
        Column(
            "at_cap",
            "bigint",
            "µs for which the mailbox was as full as its desk allows, for 1,000 days at most; of a desk, their sum.",
        ),
        Column("refused", "bigint", "Posts refused because it was full."),
    ),
    ("day",),
)

AVAILABILITY = Table(
    "availability",
    "a mailbox × UTC day",
    ("day", "node", "desk", "mailbox"),
    (
        Column("day", "date", "The UTC day."),
        _NODE,
        _DESK,
        _MAILBOX,
        Column("covered", "bigint", "µs of the day that the journal covers."),
        Column("online", "bigint", "µs of these with a holder connected; of one connection, for 1,000 days at most."),
        Column("share", "double", "online / covered."),
        Column("connections", "bigint", "Connections that began."),
        Column("reconnect_rate", "double", "Connections an hour of the covered time."),
        Column("half_open", "bigint", "Connections that ended without a goodbye: timeout, replaced, restart."),
    ),
    ("day",),
)

DEADLETTERS = Table(
    "deadletters",
    "a cluster of errors of a desk",
    ("desk", "error"),
    (
        _DESK,
        Column("error", "string", "The error with UUIDs, hex and decimal numbers replaced."),
        Column("count", "bigint", "`died` events with it."),
        Column("first_at", "timestamp", "The first one."),
        Column("last_at", "timestamp", "The last one."),
        Column("redriven", "bigint", "How many of them were redriven."),
        Column("redriven_delivered", "bigint", "How many of these were delivered in their next life."),
    ),
)

OUTAGES = Table(
    "outages",
    "an hour × desk × target whose failure rate jumped",
    ("window", "desk", "mailbox"),
    (
        _DAY,
        _WINDOW,
        _DESK,
        Column("mailbox", "string", "The target."),
        Column("attempts", "bigint", "Leases that ended in that hour."),
        Column("failures", "bigint", "Of these, failed."),
        Column("failure_rate", "double", "failures / attempts."),
        Column("baseline", "double", "The target's failure rate in the 72 hours before."),
        Column("backlog", "bigint", "Messages unfinished at the end of the hour."),
        Column(
            "drain",
            "bigint",
            "µs from the end of the hour until the backlog was gone; null if it was not within 72 hours.",
        ),
        Column("retry_storm", "double", "Attempts for each one that did not fail; all of them where each failed."),
    ),
    ("day",),
)

REPLAYS = Table(
    "replays",
    "a policy × desk",
    ("policy", "desk"),
    (
        Column("policy", "string", "The policy that was tried, in one line; `recorded` for what happened."),
        _DESK,
        Column("exact", "boolean", "Follows from what happened; otherwise modelled."),
        Column("posted", "bigint", "Posts, refused ones included."),
        Column("delivered", "bigint", "Delivered."),
        Column("expired", "bigint", "Expired."),
        Column("dead", "bigint", "Dead."),
        Column("refused", "bigint", "Refused as recorded, whatever for, or because a smaller mailbox has no room."),
        Column("attempts", "bigint", "Attempts that count; of what expires, those that began before."),
        Column("wait", "bigint", "Mean of finished − posted of what was delivered, in µs."),
    ),
)

SEGMENTS = Table(
    "segments",
    "a file of the journal that was looked at",
    ("node", "name"),
    (
        Column("node", "string", "The store that wrote it."),
        Column("name", "string", "The file's name."),
        Column("first", "bigint", "The first offset by its name."),
        Column("last", "bigint", "The last offset by its name."),
        Column("events", "bigint", "Rows that it holds."),
        Column("ranges", "array<bigint>", "The offsets that its rows hold: first, last, first, last …"),
        Column("prev", "string", "Its prev; null where it is unverified."),
        Column("chain", "string", "Its chain; null where it is unverified."),
        Column("first_at", "timestamp", "`at` of its first row."),
        Column("last_at", "timestamp", "`at` of its last row."),
        Column("state", "string", "taken, unverified or rejected."),
        Column("faults", "array<string>", "What is wrong with it, the first of each sort."),
        Column("size_bytes", "bigint", "The file's size."),
        _BATCH,
    ),
)

RESTORES = Table(
    "restores",
    "a node that goes on from a snapshot of another; the table is there once there was one",
    ("node",),
    (
        Column("node", "string", "The restored store."),
        Column("start", "bigint", "Its own offset where it says so."),
        Column("from_node", "string", "The node of the snapshot."),
        Column("from_offset", "bigint", "The last offset in the snapshot."),
        Column("at", "timestamp", "When it started."),
        Column("known_as", "string", "The name that its rows have in all tables but `events` and `segments`."),
        Column("shift", "bigint", "What is added to its offsets there."),
        Column("last", "bigint", "The last of its own offsets that counts; null if all do, 0 if none does."),
        _BATCH,
    ),
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        EVENTS, MESSAGES, ATTEMPTS, BOOKS, ANOMALY, LATENCY, DEPTH, AVAILABILITY, DEADLETTERS, OUTAGES, REPLAYS,
        SEGMENTS, RESTORES,
    )
}  # fmt: skip
"""Every table of a lake by its name."""
