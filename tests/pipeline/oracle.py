"""The books a second time, in DuckDB's SQL and from the definitions alone: what the Spark job is compared with.

In: a folder of segments. Out: tables by name, each as rows (dictionaries). It shares no code with the transforms.
Instants and durations are whole microseconds, so that nothing depends on a time zone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

HOUR = 3_600_000_000
DAY = 24 * HOUR

FINISHING = "('delivered', 'died', 'expired', 'cancelled')"
ENDING = "('delivered', 'retried', 'released', 'recalled', 'uncertain', 'died', 'expired', 'cancelled', 'parked')"
SILENT = "('duplicate', 'refused')"
WAITING = "('posted', 'retried', 'released', 'recalled', 'unparked', 'redriven')"
LANE = "node, desk, mailbox, lane"
KEY = "node, desk, mailbox, sender, message_id"

STEPS: tuple[tuple[str, str], ...] = (
    (
        "told",
        f"""
        -- Events of messages, each with its generation and its life.
        select *, 1 + count(*) filter (where event = 'redriven')
               over (partition by {KEY}, generation order by "offset") as life
        from (
            select *, greatest(1, count(*) filter (where event = 'posted')
                   over (partition by {KEY} order by "offset")) as generation
            from events where message_id <> ''
        )
        """,
    ),
    (
        "said",
        f"""
        -- What can change a message, with where its life was first finished before it.
        select *,
            min("offset") filter (where event in {FINISHING})
                over (partition by {KEY}, generation, life order by "offset"
                      rows between unbounded preceding and 1 preceding) as finished_before,
            count(*) filter (where event = 'delivered')
                over (partition by {KEY}, generation, life order by "offset"
                      rows between unbounded preceding and 1 preceding) as delivered_before,
            last_value(case when event = 'leased' then "offset" end ignore nulls)
                over (partition by {KEY}, generation order by "offset"
                      rows between unbounded preceding and 1 preceding) as lease_before,
            last_value(expires_at ignore nulls)
                over (partition by {KEY}, generation order by "offset"
                      rows between unbounded preceding and current row) as expires_now,
            lead("offset") over (partition by {KEY}, generation order by "offset") as next_offset,
            lead(event) over (partition by {KEY}, generation order by "offset") as next_event,
            lead(ts) over (partition by {KEY}, generation order by "offset") as next_at
        from told where event not in {SILENT}
        """,
    ),
    (
        "leases",
        f"""
        select l.*, e."offset" as end_offset, e.ts as end_at, e.event as end_event, e.reason as end_reason,
            e.error as end_error, r.ts as got_at
        from (
            select *, lead("offset") over (partition by {KEY}, generation order by "offset") as next_lease
            from said where event = 'leased'
        ) l
        left join lateral (
            select * from said e
            where (e.node, e.desk, e.mailbox, e.sender, e.message_id, e.generation)
                = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)
                and e."offset" > l."offset" and (l.next_lease is null or e."offset" < l.next_lease)
                and e.event in {ENDING}
            order by e."offset" limit 1
        ) e on true
        left join lateral (
            select min(r.ts) as ts from said r
            where (r.node, r.desk, r.mailbox, r.sender, r.message_id, r.generation)
                = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)
                and r."offset" > l."offset" and (l.next_lease is null or r."offset" < l.next_lease)
                and (e."offset" is null or r."offset" < e."offset") and r.event = 'received'
        ) r on true
        """,
    ),
    (
        "lives",
        f"""
        select {KEY}, generation,
            max(life) as lives,
            min("offset") filter (where event = 'posted') as posted_offset,
            count(*) filter (where event not in {SILENT}) as says,
            count(*) filter (where event = 'refused') as refusals,
            count(*) filter (where event = 'duplicate') as duplicates,
            min("offset") as first_offset, max("offset") as last_offset,
            max("offset") filter (where event not in {SILENT}) as last_said,
            min("offset") filter (where event = 'refused') as first_refused,
            min(ts) filter (where event = 'leased') as first_leased_at,
            min(ts) filter (where event = 'received') as received_at,
            max(lane_seq) as lane_seq
        from told group by all
        """,
    ),
    (
        "ends",
        f"""
        select {KEY}, generation, min("offset") as end_offset
        from said s where event in {FINISHING}
            and life = (select max(life) from told t
                where (t.node, t.desk, t.mailbox, t.sender, t.message_id, t.generation)
                    = (s.node, s.desk, s.mailbox, s.sender, s.message_id, s.generation))
        group by all
        """,
    ),
    (
        "messages",
        """
        select l.node, l.desk, l.mailbox, coalesce(p.lane, f.lane) as lane, l.sender, l.message_id,
            l.generation, coalesce(p.kind, f.kind) as kind, l.lane_seq,
            coalesce(p.size_bytes, f.size_bytes) as size_bytes,
            p.ts as posted_at, l.first_leased_at, l.received_at,
            case when l.says = 0 then q.ts when e.ts is not null then e.ts end as finished_at,
            case when l.says = 0 then 'refused'
                when e.event = 'died' then 'dead'
                when e.event is not null then e.event
                when z.event = 'uncertain' then 'uncertain'
                else 'open' end as outcome,
            l.lives,
            coalesce(e.event = 'delivered' and d.commit = p.commit, false) as live,
            l.says > 0 and p.ts is null as orphan,
            l.first_offset, l.last_offset, l.duplicates,
            (select last(s.expires_at order by s."offset") from said s where s.expires_at is not null
                and (s.node, s.desk, s.mailbox, s.sender, s.message_id, s.generation)
                  = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)) as expires_at,
            p.cause_id,
            case when e.event = 'delivered' and p.ts is not null then greatest(e.ts - p.ts, 0) end as latency,
            z.event as last_event, z."offset" as last_said, p."offset" as posted_offset, f.ts as first_at,
            e."offset" as end_offset
        from lives l
        left join events p on p.node = l.node and p."offset" = l.posted_offset
        left join events f on f.node = l.node and f."offset" = l.first_offset
        left join events z on z.node = l.node and z."offset" = l.last_said
        left join events q on q.node = l.node and q."offset" = l.first_refused
        left join ends x on (x.node, x.desk, x.mailbox, x.sender, x.message_id, x.generation)
            = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)
        left join said e on e.node = l.node and e."offset" = x.end_offset
        left join events d on d.node = e.node and d."offset" = e.lease_before
        where l.says > 0 or l.refusals > 0
        """,
    ),
    (
        "attempts",
        f"""
        select {KEY}, generation, lane, kind, life, attempt, holder, ts as started_at, got_at as received_at,
            end_at as ended_at, coalesce(end_event, 'open') as ended, end_reason as reason, end_error as error,
            "offset" as lease_offset, end_offset
        from leases
        """,
    ),
    (
        "books",
        f"""
        with counted as (
            select coalesce(posted_at, first_at) // {HOUR} * {HOUR} as "window", desk, kind,
                count(*) filter (where not orphan) as posted,
                count(*) filter (where not orphan and outcome = 'delivered') as delivered,
                count(*) filter (where not orphan and outcome = 'dead') as dead,
                count(*) filter (where not orphan and outcome = 'expired') as expired,
                count(*) filter (where not orphan and outcome = 'cancelled') as cancelled,
                count(*) filter (where not orphan and outcome = 'uncertain') as uncertain,
                count(*) filter (where not orphan and outcome = 'open') as open,
                0 as refused, 0 as duplicate,
                count(*) filter (where orphan) as remainder,
                list(message_id) filter (where orphan) as ids
            from messages where outcome <> 'refused' group by all
            union all
            select ts // {HOUR} * {HOUR}, desk, kind, 0, 0, 0, 0, 0, 0, 0,
                count(*) filter (where event = 'refused'), count(*) filter (where event = 'duplicate'), 0, null
            from events where event in {SILENT} group by all
        )
        select "window", desk, kind, sum(posted)::bigint as posted, sum(delivered)::bigint as delivered,
            sum(dead)::bigint as dead, sum(expired)::bigint as expired, sum(cancelled)::bigint as cancelled,
            sum(uncertain)::bigint as uncertain, sum(open)::bigint as open, sum(refused)::bigint as refused,
            sum(duplicate)::bigint as duplicate, sum(remainder)::bigint as remainder,
            list_sort(coalesce(flatten(list(ids) filter (where ids is not null)), [])) as remainder_ids
        from counted group by all
        """,
    ),
    (
        "waits_in_lane",
        f"""
        -- Where a message waited for a lease, and had not been set aside before.
        select *, "offset" as begins, coalesce(next_offset, 9223372036854775807) as ends
        from (
            select *, count(*) filter (where event in ('parked', 'uncertain', 'died', 'redriven'))
                over (partition by {KEY}, generation order by "offset") as aside
            from said
        )
        where event in ('posted', 'retried', 'released', 'recalled') and finished_before is null and aside = 0
            and lane_seq > 0
        """,
    ),
    (
        "findings",
        f"""
        with last_at as (select node, last(ts order by "offset") as ts from events group by node),
        sequence as (
            select {LANE}, lane_seq, min("offset") as "offset", min_by(sender, "offset") as sender,
                min_by(message_id, "offset") as message_id,
                lag(lane_seq, 1, 0) over (partition by {LANE} order by lane_seq) as before
            from told where lane_seq > 0 group by {LANE}, lane_seq
        ),
        offsets as (
            select node, "offset", ts, lag("offset", 1, 0) over w as before, lag(ts) over w as at_before
            from events window w as (partition by node order by "offset")
        )
        select 'lost' as kind, node, desk, mailbox, sender, message_id, [first_offset] as offsets
        from messages where orphan
        union all
        select 'lost', node, desk, mailbox, sender, message_id, [posted_offset]
        from messages m join last_at l using (node)
        where outcome = 'open' and not orphan and last_event in {WAITING} and l.ts >= m.expires_at + {HOUR}
        union all
        select 'lane_gap', node, desk, mailbox, sender, message_id, ["offset"] from sequence where lane_seq > before + 1
        union all
        select 'journal_gap', node, '', '', '', '', [before + 1, "offset" - 1] from offsets where "offset" > before + 1
        union all
        select 'clock_back', node, '', '', '', '', ["offset"] from offsets where ts < at_before
        union all
        select 'out_of_order', w.node, w.desk, w.mailbox, w.sender, w.message_id, [min(w.begins), min(o."offset")]
        from waits_in_lane w join said o using ({LANE})
        where o.event in ('leased', 'delivered') and o.lane_seq > w.lane_seq
            and o."offset" > w.begins and o."offset" < w.ends
        group by all
        union all
        select 'delivered_twice', {KEY}, list("offset" order by "offset") from said
        where event = 'delivered' and delivered_before > 0 group by all
        union all
        select 'settled_after_finished', {KEY}, list("offset" order by "offset") from said
        where finished_before is not null and event <> 'redriven' and not (event = 'delivered' and delivered_before > 0)
        group by all
        union all
        select 'delivered_after_expiry', s.node, s.desk, s.mailbox, s.sender, s.message_id,
            list(l."offset" order by l."offset")
        from said s join said l on l.node = s.node and l."offset" = s.lease_before
        where s.event = 'delivered' and s.finished_before is null and l.ts >= l.expires_now group by s.node, s.desk,
            s.mailbox, s.sender, s.message_id
        union all
        select 'answered_twice', node, desk, '', '', cause_id, list("offset" order by "offset")
        from told where event = 'posted' and cause_id is not null
        group by node, desk, cause_id having count(distinct "commit") > 1
        """,
    ),
)


class Oracle:
    """The tables of one journal."""

    def __init__(self, journal: Path, *, only: tuple[str, ...] | None = None) -> None:
        self._db = duckdb.connect()
        self._db.execute("set threads = 2")
        files = sorted(str(path) for path in journal.glob("node=*/*.parquet"))
        columns = ", ".join(f"epoch_us({name}) as {name}" for name in ("due_at", "expires_at"))
        self._db.execute(
            f"""create table events as select * exclude ("at") replace ({columns}), epoch_us("at") as ts
                from read_parquet(?, hive_partitioning = false)""",
            [files],
        )
        for name, query in STEPS:
            self._db.execute(f"create table {name} as {query}")

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query on the tables."""
        result = self._db.execute(query)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def table(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table."""
        return self.rows(f"select * from {name}")
