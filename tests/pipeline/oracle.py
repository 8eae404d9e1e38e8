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
SPAN_MAX = 1_000 * DAY

FINISHING = "('delivered', 'died', 'expired', 'cancelled')"
LIMITING = "('posted', 'redriven', 'unparked')"
ENDING = "('delivered', 'retried', 'released', 'recalled', 'uncertain', 'died', 'expired', 'cancelled', 'parked')"
SILENT = "('duplicate', 'refused')"
WAITING = "('posted', 'retried', 'released', 'recalled', 'unparked', 'redriven')"
LANE = "node, desk, mailbox, lane"
KEY = "node, desk, mailbox, sender, message_id"

NEVER = 1 << 62
FREED = f"""coalesce(min_by(clock, "offset") filter (
    where event in ('delivered', 'died', 'expired', 'cancelled', 'parked', 'uncertain')), {NEVER})"""
SPLIT = ", ".join(
    f"coalesce(sum(long) filter (where cause = '{name}'), 0)::bigint as wait_{name}"
    for name in ("in_flight", "parked", "paused", "offline", "backoff", "quiet", "lane", "idle")
)
UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
CLUSTER = rf"""regexp_replace(regexp_replace(regexp_replace(trim(coalesce(error, '')),
    '{UUID}', '#', 'g'), '\b0[xX][0-9a-fA-F]+\b', '#', 'g'), '\d+(\.\d+)?', '#', 'g')"""

STEPS: tuple[tuple[str, str], ...] = (
    (
        "restores",
        """
        -- What each node said first of the snapshot that it goes on from.
        select node, arg_min(origin, "offset") as origin, arg_min(cut, "offset") as cut, arg_min(ts, "offset") as ts
        from (
            select node, "offset", ts, json_extract_string(said, '$.restored_from.node') as origin,
                cast(json_extract(said, '$.restored_from.offset') as bigint) as cut
            from (select *, try_cast(detail as json) as said from written where event = 'started')
        ) where origin is not null group by node
        """,
    ),
    (
        "followed",
        """
        -- Of those that go on from one node, the one in whose line the newest restore is.
        with recursive below(top, node, ts) as (
            select node, node, ts from restores
            union all
            select b.top, r.node, r.ts from below b join restores r on r.origin = b.node
        ),
        ranked as (
            select r.*, row_number() over (partition by r.origin order by b.ts desc, b.node desc) as place
            from restores r join below b on b.top = r.node
        )
        select origin, node, cut from ranked where place = 1
        """,
    ),
    (
        "lines",
        """
        with recursive line(node, root, shift) as (
            select distinct origin, origin, 0::bigint from restores where origin not in (select node from restores)
            union all
            select f.node, l.root, l.shift + f.cut from line l join followed f on f.origin = l.node
        )
        select node, root, shift, (select cut from followed f where f.origin = line.node) as ends from line
        """,
    ),
    (
        "events",
        """
        -- As the books count them: a restored node goes on where its snapshot ends.
        select w.* replace (
            coalesce(l.root, w.node) as node, w."offset" + coalesce(l.shift, 0) as "offset",
            w."commit" + coalesce(l.shift, 0) as "commit")
        from written w left join lines l using (node)
        where (l.ends is null or w."offset" <= l.ends)
            and (l.node is not null or w.node not in (select node from restores))
        """,
    ),
    (
        "told",
        f"""
        -- Events of messages, each with its generation and its life.
        select *, 1 + count(*) filter (where event = 'redriven')
               over (partition by {KEY}, generation order by "offset") as life
        from (
            -- What was said before a post is of another message, whose own post was never told.
            select *, greatest(1, count(*) filter (where event = 'posted') over w
                   + coalesce((first_value(case when event not in {SILENT} then event end ignore nulls) over w
                               <> 'posted')::int, 0)) as generation
            from events where message_id <> ''
            window w as (partition by {KEY} order by "offset" rows between unbounded preceding and current row)
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
            -- No limit is one, too.
            last_value(case when event in {LIMITING} then {{'at': expires_at}} end ignore nulls)
                over (partition by {KEY}, generation order by "offset"
                      rows between unbounded preceding and current row)['at'] as expires_now,
            lead("offset") over (partition by {KEY}, generation order by "offset") as next_offset,
            lead(event) over (partition by {KEY}, generation order by "offset") as next_event,
            lead(ts) over (partition by {KEY}, generation order by "offset") as next_at
        from told where event not in {SILENT}
        """,
    ),
    (
        "counted",
        f"""
        -- What counts: nothing after the end of a life but its redrive.
        select *,
            max(ts) over w as clock,
            case when event in {WAITING} then 0 when event in ('leased', 'received') then 1 else 2 end as state
        from said where finished_before is null
        window w as (partition by {KEY}, generation order by "offset")
        """,
    ),
    (
        "leases",
        f"""
        select * from (
            select *, lead("offset") over w as end_offset, lead(ts) over w as end_at, lead(event) over w as end_event,
                lead(reason) over w as end_reason, lead(error) over w as end_error
            from counted where event <> 'received'
            window w as (partition by {KEY}, generation order by "offset")
        ) where event = 'leased'
        """,
    ),
    (
        "stretches",
        f"""
        -- The time of a message between what counts, as its clock runs, with how it stood.
        select *, lead(clock) over w as until, lag(state) over w as state_before
        from counted window w as (partition by {KEY}, generation order by "offset")
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
            min_by(ts, "offset") filter (where event = 'leased') as first_leased_at,
            min_by(ts, "offset") filter (where event = 'received') as received_at,
            -- A message has the number that is said of it first. If it is told under others, too, their posts are lost.
            coalesce(min_by(lane_seq, "offset") filter (where event not in {SILENT}), 0) as lane_seq
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
        f"""
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
            (select arg_max_null(s.expires_at, s."offset") from said s where s.event in {LIMITING}
                and (s.node, s.desk, s.mailbox, s.sender, s.message_id, s.generation)
                  = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)) as expires_at,
            (select min(s."offset") from said s where s.event = 'delivered' and s.life = l.lives
                and (s.node, s.desk, s.mailbox, s.sender, s.message_id, s.generation)
                  = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)) as delivered_offset,
            case when p.node is null then f.cause_id else p.cause_id end as cause_id,
            case when l.says = 0 then q.reason when e.event is not null then e.reason else z.reason end as reason,
            case when l.says = 0 then q.error else (select last(s.error order by s."offset") from counted s
                where s.error is not null
                and (s.node, s.desk, s.mailbox, s.sender, s.message_id, s.generation)
                  = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)) end as error,
            (select count(*) from leases s
                where coalesce(s.end_event, '') not in ('released', 'recalled')
                and (s.node, s.desk, s.mailbox, s.sender, s.message_id, s.generation)
                  = (l.node, l.desk, l.mailbox, l.sender, l.message_id, l.generation)) as attempts,
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
        -- The lease that delivered it is the one that its delivery ended.
        left join leases d on d.node = e.node and d.end_offset = e."offset"
        where l.says > 0 or l.refusals > 0
        """,
    ),
    (
        "attempts",
        f"""
        select {KEY}, generation, lane, kind, life, attempt, holder, ts as started_at,
            (select min_by(r.ts, r."offset") from counted r where r.node = l.node and r.event = 'received'
                and (r.desk, r.mailbox, r.sender, r.message_id) = (l.desk, l.mailbox, l.sender, l.message_id)
                and r."offset" > l."offset" and (l.end_offset is null or r."offset" < l.end_offset)) as received_at,
            end_at as ended_at, coalesce(end_event, 'open') as ended, end_reason as reason, end_error as error,
            "offset" as lease_offset, end_offset
        from leases l
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
        "seen",
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
            from written window w as (partition by node order by "offset")
        ),
        reached as (select origin as node, max(cut) as cut from restores group by origin)
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
        select 'journal_gap', node, '', '', '', '', [coalesce(w.last, 0) + 1, cut]
        from reached left join (select node, max("offset") as last from written group by node) w using (node)
        where cut > coalesce(w.last, 0)
        union all
        select 'abandoned', node, '', '', '', '', [coalesce(max(l.ends), 0) + 1, max(w."offset")]
        from written w left join lines l using (node)
        where w."offset" > l.ends or l.node is null and w.node in (select node from restores)
        group by node
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
        from said s join leases l on l.node = s.node and l.end_offset = s."offset"
        where s.event = 'delivered' and s.finished_before is null and l.ts >= l.expires_now group by s.node, s.desk,
            s.mailbox, s.sender, s.message_id
        union all
        select 'answered_twice', node, desk, '', '', cause_id, list("offset" order by "offset")
        from told where event = 'posted' and cause_id is not null
        group by node, desk, cause_id having count(distinct "commit") > 1
        """,
    ),
    (
        "findings",
        """
        -- Of a message one of each kind, the first, whichever of its generations it is about.
        select kind, node, desk, mailbox, sender, message_id, min(offsets) as offsets
        from seen where message_id <> '' group by all
        union all
        select * from seen where message_id = ''
        """,
    ),
    (
        "links",
        """
        -- Connections: until the same holder leaves, another one comes, or the node starts again.
        select c.node, c.desk, c.mailbox, c.ts as since, c."offset", min_by(e.ts, e."offset") as until,
            min_by(case e.event when 'connected' then 'replaced' when 'started' then 'restart'
                else coalesce(e.reason, 'closed') end, e."offset") as ending
        from events c left join events e on e.node = c.node and e."offset" > c."offset" and (
            e.event = 'started'
            or (e.desk, e.mailbox) = (c.desk, c.mailbox) and (e.event = 'connected'
                or e.event = 'disconnected' and e.holder is not distinct from c.holder))
        where c.event = 'connected' group by all
        """,
    ),
    (
        "opening",
        "select node, desk, min_by(ts, \"offset\") as ts from events where event = 'connected' group by node, desk",
    ),
    (
        "pauses",
        """
        select p.node, p.desk, p.mailbox, p.lane, p.ts as since, min_by(r.ts, r."offset") as until
        from events p left join events r on r.event = 'resumed' and r."offset" > p."offset"
            and (r.node, r.desk, r.mailbox, r.lane) = (p.node, p.desk, p.mailbox, p.lane)
        where p.event = 'paused' group by all
        """,
    ),
    (
        "freed",
        f"""
        select * from (
            select node, desk, mailbox, min_by(lane, "offset") as lane, min_by(lane_seq, "offset") as lane_seq,
                {FREED} as free_at
            from counted group by {KEY}, generation
        ) where lane_seq > 0
        """,
    ),
    (
        "quieted",
        """
        -- Until when the lane of a post was not quiet, by what its desk asked for at the last start before the post.
        select n.*, least(first(ends ignore nulls) over (w rows between current row and unbounded following) + quiet,
            posted_at + quiet_max) as quiet_until
        from (
            select *, case when coalesce(lead(posted_at) over w - posted_at > quiet, true) then posted_at end as ends
            from (
                select p.*, (s.policy ->> 'quiet_s')::double * 1000000 as quiet,
                    (s.policy ->> 'quiet_max_s')::double * 1000000 as quiet_max
                from messages p, lateral (
                    select arg_max_null(e.detail::json -> 'policies' -> p.desk, e."offset") as policy from events e
                    where e.event = 'started' and e.node = p.node and e."offset" < p.posted_offset
                ) s
                where p.posted_at is not null and p.lane_seq > 0
            ) where quiet > 0
            window w as (partition by node, desk, mailbox, lane order by lane_seq, posted_offset)
        ) n window w as (partition by node, desk, mailbox, lane order by lane_seq, posted_offset)
        """,
    ),
    (
        "clipped",
        f"""
        -- The time of messages that are final, inside of which it does not run back and past whose end it does not go.
        select {KEY}, generation, lane, state, due_at, lane_until,
            case when s.event = 'posted' then q.quiet_until end as quiet_until,
            greatest(m.posted_at, least(s.clock, m.cap)) as since, greatest(m.posted_at, least(s.until, m.cap)) as until
        from stretches s
        join (
            select {KEY}, generation, posted_at, greatest(posted_at, finished_at) as cap,
                (select max(f.free_at) from freed f where f.lane_seq < m.lane_seq
                    and (f.node, f.desk, f.mailbox, f.lane) = (m.node, m.desk, m.mailbox, m.lane)) as lane_until
            from messages m where finished_at is not null and posted_at is not null
        ) m using ({KEY}, generation)
        left join (select {KEY}, generation, quiet_until from quieted) q using ({KEY}, generation)
        where s.until is not null
        """,
    ),
    (
        "ready",
        """
        -- Stretches in which a message that is final now waited for a lease.
        select row_number() over () as n, * from clipped where state = 0 and until > since
        """,
    ),
    (
        "pieces",
        """
        -- Cut wherever something begins or ends; each piece has one cause.
        with edges as (
            select n, since as t from ready union select n, until from ready
            union select n, due_at from ready where due_at > since and due_at < until
            union select n, lane_until from ready where lane_until > since and lane_until < until
            union select n, quiet_until from ready where quiet_until > since and quiet_until < until
            union select n, unnest([l.since, l.until]) from ready r join links l using (node, desk, mailbox)
            union select n, unnest([p.since, p.until]) from ready r join pauses p using (node, desk, mailbox)
            union select n, o.ts from ready r join opening o using (node, desk)
        ),
        cut as (
            select n, t, lead(t) over (partition by n order by t) as t_next
            from edges join ready using (n) where t between since and until
        )
        select c.n, c.t_next - c.t as long,
            case
                when exists (select 1 from pauses p where (p.node, p.desk, p.mailbox) = (r.node, r.desk, r.mailbox)
                    and p.lane in ('', r.lane) and p.since <= c.t and coalesce(p.until, c.t_next) >= c.t_next)
                    then 'paused'
                when exists (select 1 from opening o where (o.node, o.desk) = (r.node, r.desk) and o.ts <= c.t)
                    and not exists (select 1 from links l
                    where (l.node, l.desk, l.mailbox) = (r.node, r.desk, r.mailbox)
                    and l.since <= c.t and coalesce(l.until, c.t_next) >= c.t_next)
                    then 'offline'
                when r.due_at >= c.t_next then 'backoff'
                when r.quiet_until >= c.t_next then 'quiet'
                when r.lane_until >= c.t_next then 'lane'
                else 'idle'
            end as cause
        from cut c join ready r using (n) where c.t_next > c.t
        """,
    ),
    (
        "waits",
        f"""
        with spent as (
            select {KEY}, generation, cause, long from pieces join ready using (n)
            union all
            select {KEY}, generation, case when state = 1 then 'in_flight' else 'parked' end, until - since
            from clipped where state > 0
        )
        select {KEY}, generation, {SPLIT}
        from messages left join spent using ({KEY}, generation)
        where finished_at is not null and posted_at is not null group by all
        """,
    ),
    (
        "latency",
        f"""
        select posted_at // {HOUR} * {HOUR} as "window", desk, kind, live, list(latency order by latency) as all_of
        from messages where outcome = 'delivered' and not orphan group by all
        """,
    ),
    (
        "moves",
        f"""
        -- Into the depth of a mailbox (ready or in flight, from its post on) and out of it.
        select *, inside - lag(inside, 1, 0) over (partition by {KEY}, generation order by "offset") as change
        from (
            select {KEY}, generation, s.ts, s."offset", (s.state <= 1 and s."offset" >= m.posted_offset)::int as inside
            from stretches s join messages m using ({KEY}, generation) where m.posted_at is not null
        )
        """,
    ),
    (
        "full_hours",
        f"""
        -- Hours for which mailboxes were as full as the last `started` before each move allowed.
        select h * {HOUR} as "window", node, desk, mailbox,
            sum(least(until, (h + 1) * {HOUR}) - greatest(ts, h * {HOUR}))::bigint as at_cap
        from (
            select *, unnest(range(ts // {HOUR}, (until - 1) // {HOUR} + 1)) as h
            from (
                select m.*, sum(change) over w as depth, lead(ts) over w as ends,
                    case when ends > ts + {SPAN_MAX} then ts + {SPAN_MAX} else ends end as until,
                    (select arg_max_null((s.detail::json -> 'policies' -> m.desk ->> 'capacity')::bigint, s."offset")
                        from events s where s.event = 'started' and s.node = m.node and s."offset" < m."offset") as cap
                from moves m where change <> 0
                window w as (partition by node, desk, mailbox order by "offset")
            ) where depth >= cap and until > ts
        ) group by all
        """,
    ),
    (
        "depth",
        f"""
        with boxes as (
            select ts // {HOUR} * {HOUR} as "window", node, desk, mailbox,
                count(*) filter (where change > 0) as posted,
                count(*) filter (where change < 0) as finished, 0 as refused, 0 as at_cap
            from moves where change <> 0 group by all
            union all
            select "window", node, desk, mailbox, 0, 0, 0, at_cap from full_hours
            union all
            select ts // {HOUR} * {HOUR}, node, desk, mailbox, 0, 0, count(*), 0
            from events where event = 'refused' and reason in ('full', 'share') group by all
        ),
        twice as (
            select * from boxes where mailbox <> '' union all select * replace ('' as mailbox) from boxes
        ),
        summed as (
            select "window", node, desk, mailbox, sum(posted)::bigint as posted, sum(finished)::bigint as finished,
                sum(refused)::bigint as refused, sum(at_cap)::bigint as at_cap,
                sum(sum(posted) - sum(finished))
                    over (partition by node, desk, mailbox order by "window")::bigint as depth_end
            from twice group by "window", node, desk, mailbox
        ),
        moved as (
            select ts // {HOUR} * {HOUR} as "window", node, desk, mailbox, "offset", change from moves
            where mailbox <> '' and change <> 0
            union all
            select ts // {HOUR} * {HOUR}, node, desk, '', "offset", change from moves where change <> 0
        ),
        risen as (
            select "window", node, desk, mailbox, max(level) as rise
            from (
                select *, sum(change) over (partition by "window", node, desk, mailbox order by "offset") as level
                from moved
            ) group by all
        )
        select s.*, (depth_end - posted + finished + greatest(coalesce(rise, 0), 0))::bigint as depth_max
        from summed s left join risen using ("window", node, desk, mailbox)
        """,
    ),
    (
        "availability",
        f"""
        with covers as (select node, min(ts) as first_at, max(ts) as last_at from events group by node),
        days as (
            select node, unnest(range(first_at // {DAY}, last_at // {DAY} + 1)) as day, first_at, last_at from covers
        )
        select *, online / nullif(covered, 0) as share, connections * {HOUR} / nullif(covered, 0) as reconnect_rate
        from (select d.day, l.node, l.desk, l.mailbox,
            least(d.last_at, (d.day + 1) * {DAY}) - greatest(d.first_at, d.day * {DAY}) as covered,
            sum(greatest(0, least(coalesce(l.until, d.last_at), l.since + {SPAN_MAX}, (d.day + 1) * {DAY})
                - greatest(l.since, d.day * {DAY})))::bigint as online,
            count(*) filter (where l.since // {DAY} = d.day) as connections,
            count(*) filter (where l.ending in ('timeout', 'replaced', 'restart') and l.until // {DAY} = d.day)
                as half_open
        from links l join days d using (node)
        group by all having online > 0 or connections > 0 or half_open > 0)
        """,
    ),
    (
        "deadletters",
        f"""
        with deaths as (
            select c.*, lead(c.event) over w as next_said,
                (select min_by(n.event, n."offset") from counted n where n.life = c.life + 1
                    and (n.node, n.desk, n.mailbox, n.sender, n.message_id, n.generation)
                      = (c.node, c.desk, c.mailbox, c.sender, c.message_id, c.generation)
                    and n.event in {FINISHING}) as next_end
            from counted c window w as (partition by {KEY}, generation order by "offset")
        )
        select desk, {CLUSTER} as error, count(*) as count, min(ts) as first_at, max(ts) as last_at,
            count(*) filter (where next_said = 'redriven') as redriven,
            count(*) filter (where next_said = 'redriven' and next_end = 'delivered') as redriven_delivered
        from deaths where event = 'died' group by all
        """,
    ),
    (
        "outages",
        f"""
        with hours as (
            select end_at // {HOUR} * {HOUR} as "window", desk, mailbox, count(*) as attempts,
                count(*) filter (where end_event in ('retried', 'died', 'uncertain', 'parked')) as failures
            from leases where end_at is not null group by all
        ),
        rated as (
            select *, failures / attempts as failure_rate,
                coalesce(sum(failures) over t / nullif(sum(attempts) over t, 0), 0) as baseline
            -- Compared with the three days before.
            from hours window t as (partition by desk, mailbox order by "window"
                range between {72 * HOUR} preceding and {HOUR} preceding)
        )
        , levels as (
            -- What was in a mailbox at the end of an hour, of those in which that changed.
            select "window", desk, mailbox, sum(moved) over (partition by desk, mailbox order by "window") as level
            from (
                select ts // {HOUR} * {HOUR} as "window", desk, mailbox, sum(change) as moved
                from moves where change <> 0 group by all
            )
        )
        select *, case when backlog <= 0 then 0 else (
                select min(l."window") from levels l where (l.desk, l.mailbox) = (o.desk, o.mailbox) and l.level <= 0
                    and l."window" > o."window" and l."window" <= o."window" + {72 * HOUR}
            ) - o."window" end as drain,
            attempts / greatest(attempts - failures, 1) as retry_storm
        from (
            select r.*, coalesce((
                select max_by(l.level, l."window") from levels l
                where (l.desk, l.mailbox) = (r.desk, r.mailbox) and l."window" <= r."window"
            ), 0)::bigint as backlog
            from rated r where attempts >= 5 and failure_rate >= 0.5 and failure_rate >= 2 * baseline
        ) o
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
            f"""create table written as select * exclude ("at") replace ({columns}), epoch_us("at") as ts
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
