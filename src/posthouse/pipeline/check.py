"""Checks of a lake: files against what was taken in, tables against that and each other.

In: a journal, the lake's record, its tables. Out: what does not agree, as kind, place and sentence. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .bronze import Journal, Listing, Segment
from .finding import findings
from .ledger import Plan, State
from .lineage import Lineage
from .offsets import count
from .schema import IDENTITY
from .tables import Tables
from .withdrawn import TOLD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Discrepancy = tuple[str, str, str]


def held_by_segments(journal: Journal, mailbox: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The segments that still hold rows of a mailbox, and those of which nobody can tell."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found, unread = [], []
    for file in journal.listing().files:
        try:
            with journal.open(file) as source:
                column = pq.read_table(source, columns=["mailbox"]).column("mailbox")
        except (pa.ArrowException, OSError, ValueError, KeyError):
            unread.append(f"node={file.node}/{file.name}")
            continue
        rows = pc.sum(pc.equal(column, mailbox)).as_py() or 0
        if rows:
            found.append({"segment": f"node={file.node}/{file.name}", "events": rows})
    return found, unread


def verify_files(
    journal: Journal, taken: Sequence[Segment], lineage: Lineage, listing: Listing, looked: Sequence[Segment]
) -> Iterator[Discrepancy]:
    """The journal's files as they are now, against those that were taken in."""
    known = {(segment.node, segment.name): segment for segment in taken}
    for each in findings(looked, listing.foreign, lineage):
        yield each.kind, f"node {each.node}" if each.node else journal.place, each.detail
    for segment in looked:
        before = known.pop((segment.node, segment.name), None)
        if before is not None and (before.chain, before.ranges) != (segment.chain, segment.ranges):
            yield "altered", f"node={segment.node}/{segment.name}", "it is not the file that was taken in"
    for node, name in known:
        yield "missing", f"node={node}/{name}", "it was taken in and is not there any more"


def verify_tables(tables: Tables, state: State, plan: Plan | None) -> Iterator[Discrepancy]:
    """The tables against the record and against each other."""
    from pyspark.sql import functions as F

    if not state.batch:
        return
    if plan is not None and plan.batch > state.batch:
        yield "unfinished", "lake", f"batch {plan.batch} was begun and not committed: run the books"
        return
    events = tables.load("events")
    counted = {
        row["node"]: (row["n"], row["d"])
        for row in events.groupBy("node").agg(F.count("*").alias("n"), F.countDistinct("offset").alias("d")).collect()
    }
    for node, ranges in state.known().items():
        rows, distinct = counted.pop(node, (0, 0))
        wanted = count(ranges)
        if rows != distinct:
            yield "twice", f"events of {node}", f"{rows - distinct} offsets are there more than once"
        if distinct != wanted and not state.forgotten:
            yield "missing", f"events of {node}", f"there are {distinct} events, and the segments hold {wanted}"
    for node in counted:
        yield "foreign", f"events of {node}", "no segment of this node was taken in"
    # From here on as the books count them.
    events = state.lineage.counted(events)
    messages = tables.load("messages")
    unique = messages.groupBy(*IDENTITY, "generation").count().where("count > 1").limit(1).collect()
    if unique:
        yield "twice", "messages", f"{unique[0]['message_id']} is there {unique[0]['count']} times"
    yield from _verify_attempts(tables, events)
    for name in TOLD:
        rows, read = tables.load(name).count(), tables.count(name)
        if rows != read:
            yield "mismatch", name, f"there are {rows} rows, and {read} for one who reads them without Spark"
    wanted_posts = messages.where("posted_at IS NOT NULL").count()
    posted = tables.load("books").agg(F.sum("posted")).collect()[0][0] or 0
    if posted != wanted_posts:
        yield "mismatch", "books", f"they count {posted} posts, and there are {wanted_posts} messages posted"
    posts = events.where("event = 'posted'").count()
    if posts != wanted_posts:
        yield "mismatch", "messages", f"there are {wanted_posts} messages posted and {posts} posts"


def _verify_attempts(tables: Tables, events: DataFrame) -> Iterator[Discrepancy]:
    """Each lease is one attempt, but for those of messages that were finished: these are findings."""
    from pyspark.sql import functions as F

    on = ["node", "lease_offset"]
    leases = events.where("event = 'leased' AND message_id <> ''").withColumnRenamed("offset", "lease_offset")
    attempts = tables.load("attempts").select(*on)
    twice = attempts.groupBy(*on).count().where("count > 1").limit(1).collect()
    if twice:
        yield "twice", "attempts", f"the lease {twice[0]['lease_offset']} of {twice[0]['node']} is there more than once"
    invented = attempts.join(leases, on=on, how="left_anti").limit(1).collect()
    if invented:
        row = invented[0]
        yield "mismatch", "attempts", f"there is no lease at offset {row['lease_offset']} of {row['node']}"
    late = tables.load("anomalies").where(F.col("kind") == "settled_after_finished").select(*IDENTITY)
    lacking = leases.join(attempts, on=on, how="left_anti").join(late, on=list(IDENTITY), how="left_anti")
    for row in lacking.select(*on).limit(1).collect():
        yield "mismatch", "attempts", f"the lease {row['lease_offset']} of {row['node']} is none"
