"""The books in DuckDB and in Polars, for comparison: the same tables from the same segments, without increments.

In: a folder of segments. Out: a folder of Parquet files, one a table. Both check the segments first (offsets, clocks,
chains) as ours does, and by the same code: neither has anything that could. How long that took is told apart. DuckDB
builds events, messages with their waits, attempts, books, latency, depth, anomalies, availability, dead letters and
outages; Polars the same but for the split of waiting by offline and lane, what was refused or said twice, and the
highest depth. Both are written as one would write them there. Neither takes generations apart, or tells how long
pauses, quiet and full mailboxes lasted; a connection that stands counts for nothing.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KEY = "node, desk, mailbox, sender, message_id"
FINISHING = ("delivered", "died", "expired", "cancelled")
ENDS = "('delivered', 'died', 'expired', 'cancelled')"
WAITING = "('posted', 'retried', 'released', 'recalled', 'unparked', 'redriven')"
HOUR, DAY = 3_600_000_000, 86_400_000_000

DUCKDB: dict[str, str] = {
    "steps": f"""
        select * exclude (finished_before, reset_before), finished_before is not null
            and finished_before > coalesce(reset_before, 0) and event <> 'redriven' as is_after
        from (
            select {KEY}, lane, lane_seq, kind, "offset", epoch_us("at") as ts, "commit", event, attempt, holder,
                reason, error, epoch_us(due_at) as due, epoch_us(expires_at) as expires, cause_id, size_bytes,
                lead(event) over w as next_event, lead("offset") over w as next_offset,
                lead(epoch_us("at")) over w as next_ts, lead(reason) over w as next_reason,
                lead(error) over w as next_error,
                max(case when event in {ENDS} then "offset" end) over p as finished_before,
                max(case when event = 'redriven' then "offset" end) over p as reset_before
            from events where message_id <> '' and event not in ('duplicate', 'refused')
            window w as (partition by {KEY} order by "offset"),
                p as (partition by {KEY} order by "offset" rows between unbounded preceding and 1 preceding)
        )""",
    "lives": f"""
        select {KEY}, any_value(lane) as lane, max(lane_seq) as lane_seq, any_value(kind) as kind,
            max(size_bytes) as size_bytes, any_value(cause_id) as cause_id,
            min(ts) filter (where event = 'posted') as posted,
            min("commit") filter (where event = 'posted') as "commit",
            min(ts) filter (where event = 'leased') as leased, min(ts) filter (where event = 'received') as received,
            min("offset") filter (where event in ('leased', 'delivered')) as taken,
            coalesce(min("offset") filter (where event = 'leased'), min("offset") filter (where event in {ENDS}))
                as waited,
            max(ts) filter (where event in {ENDS} and not is_after) as finished,
            max_by(event, "offset") filter (where not is_after) as last_event,
            max_by(reason, "offset") filter (where not is_after) as reason, max_by(error, "offset") as error,
            count(*) filter (where event = 'leased') as attempts, max(expires) as expires,
            min("offset") as first_offset, max("offset") as last_offset,
            max("commit") filter (where event = 'leased' and next_event = 'delivered') as lease_commit,
            min(ts) filter (where event in {ENDS} or event in ('parked', 'uncertain')) as freed,
            coalesce(sum(greatest(next_ts - ts, 0)) filter (where event in ('leased', 'received') and not is_after), 0)
                as wait_in_flight,
            coalesce(sum(greatest(next_ts - ts, 0)) filter (where event in ('parked', 'uncertain', 'died')
                and not is_after), 0) as wait_parked
        from steps group by {KEY}""",
    "lanes": """
        select *, lag(lane_seq, 1, 0) over l as seq_before,
            max(coalesce(freed, 4611686018427387904)) over b as lane_until,
            max(coalesce(waited, 4611686018427387904)) over b as waited_before
        from lives window l as (partition by node, desk, mailbox, lane order by lane_seq),
            b as (partition by node, desk, mailbox, lane order by lane_seq
                rows between unbounded preceding and 1 preceding)""",
    "links": """
        select node, desk, mailbox, epoch_us("at") as since, lead(epoch_us("at")) over w as until, reason
        from events where event in ('connected', 'disconnected')
        window w as (partition by node, desk, mailbox order by "offset") qualify event = 'connected'""",
    "timeline": """
        select node, desk, mailbox, t, down, sum(case when was_down then t - before else 0 end)
                over (partition by node, desk, mailbox order by t) as offline
        from (
            select *, lag(t) over w as before, lag(down) over w as was_down
            from (
                select node, desk, mailbox, since as t, false as down from links
                union all select node, desk, mailbox, until, true from links where until is not null
            ) window w as (partition by node, desk, mailbox order by t)
        )""",
    "waits": f"""
        with ready as (
            select {KEY}, ts as a, next_ts as b, due from steps
            where event in {WAITING} and next_ts > ts and not is_after
        ),
        at_begin as (
            select r.*, coalesce(l.offline + case when l.down then r.a - l.t else 0 end, 0) as off_a
            from ready r asof left join timeline l on l.node = r.node and l.desk = r.desk and l.mailbox = r.mailbox
                and l.t <= r.a
        ),
        at_end as (
            select r.*, coalesce(l.offline + case when l.down then r.b - l.t else 0 end, 0) as off_b
            from at_begin r asof left join timeline l on l.node = r.node and l.desk = r.desk and l.mailbox = r.mailbox
                and l.t <= r.b
        )
        select {KEY}, sum(off_b - off_a) as wait_offline,
            sum(greatest(least(coalesce(due, a), b) - a, 0)) as wait_backoff, sum(b - a) as wait_ready
        from at_end group by {KEY}""",
    "silent": f"""
        select {KEY}, any_value(lane) as lane, any_value(kind) as kind, max(size_bytes) as size_bytes,
            any_value(cause_id) as cause_id, count(*) filter (where event = 'duplicate') as duplicates,
            min(epoch_us("at")) filter (where event = 'refused') as refused,
            arg_min(reason, "offset") filter (where event = 'refused') as reason,
            min("offset") as first_offset, max("offset") as last_offset
        from events where message_id <> '' and event in ('duplicate', 'refused') group by {KEY}""",
    "messages": f"""
        select l.*, coalesce(w.wait_offline, 0) as wait_offline, coalesce(w.wait_backoff, 0) as wait_backoff,
            greatest(least(lane_until, leased) - posted, 0) as wait_lane, coalesce(w.wait_ready, 0) as wait_ready,
            coalesce(s.duplicates, 0) as duplicates,
            case when last_event = 'died' then 'dead' when last_event in {ENDS} then last_event
                when last_event = 'uncertain' then 'uncertain' else 'open' end as outcome,
            last_event = 'delivered' and lease_commit = l."commit" as live
        from lanes l left join waits w using ({KEY}) left join silent s using ({KEY})
        union all by name
        select {KEY}, lane, kind, size_bytes, cause_id, reason, duplicates, refused as finished, first_offset,
            last_offset, 'refused' as outcome
        from silent anti join lives using ({KEY}) where refused is not null""",
    "attempts": f"""
        select {KEY}, lane, kind, attempt, holder, ts as started_at, next_ts as ended_at, next_event as ended,
            next_reason as reason, next_error as error, "offset" as lease_offset, next_offset as end_offset
        from steps where event = 'leased' and not is_after""",
    "books": f"""
        select posted // {HOUR} as "window", desk, kind, outcome, count(*) as n from messages
        where outcome <> 'refused' group by all
        union all select epoch_us("at") // {HOUR}, desk, kind, event, count(*) from events
        where message_id <> '' and event in ('duplicate', 'refused') group by all""",
    "latency": f"""
        select posted // {HOUR} as "window", desk, kind, live, count(*) as n,
            quantile_cont(greatest(finished - posted, 0), [0.5, 0.95, 0.99]) as quantiles
        from messages where outcome = 'delivered' group by all""",
    "hours": f"""
        select ts // {HOUR} as "window", node, desk, mailbox, count(*) filter (where event = 'posted') as posted,
            count(*) filter (where event in {ENDS}) as finished,
            count(*) filter (where event in ('retried', 'died', 'uncertain', 'parked')) as failed
        from steps where not is_after group by all""",
    "moves": f"""
        select ts // {HOUR} as "window", node, desk, mailbox, sum(change) over b as level,
            sum(change) over d as desk_level
        from (
            select *, case when event = 'posted' then 1 else -1 end as change from steps
            where not is_after and (event = 'posted' or event in {ENDS})
        ) window b as (partition by node, desk, mailbox order by "offset"),
            d as (partition by node, desk order by "offset")""",
    "peaks": """
        select "window", node, desk, mailbox, max(level) as depth_max from moves group by all
        union all select "window", node, desk, '', max(desk_level) from moves group by all""",
    "turned": f"""
        select epoch_us("at") // {HOUR} as "window", node, desk, mailbox, count(*) as refused from events
        where event = 'refused' and reason in ('full', 'share') group by all""",
    "depth": """
        select *, sum(posted - finished) over (partition by node, desk, mailbox order by "window") as depth_end
        from (
            select "window", node, desk, mailbox, posted, finished from hours
            union all select "window", node, desk, '', sum(posted), sum(finished) from hours group by all
        ) left join peaks using ("window", node, desk, mailbox) left join turned using ("window", node, desk, mailbox)
        qualify row_number() over (partition by "window", node, desk order by mailbox <> '', posted + finished desc)
            <= 201""",
    "anomalies": f"""
        select 'lost' as kind, {KEY}, [first_offset] as offsets from messages
            where posted is null and outcome <> 'refused'
        union all select 'lane_gap', {KEY}, [first_offset] from messages where lane_seq > seq_before + 1
        union all select 'out_of_order', {KEY}, [taken] from messages where taken < waited_before
        union all select 'after', {KEY}, list("offset") from steps where is_after group by {KEY}
        union all select 'late', {KEY}, [first_offset] from messages where outcome = 'delivered' and leased >= expires
        union all select 'answered_twice', node, desk, '', '', cause_id, list(first_offset) from messages
            where cause_id is not null group by node, desk, cause_id having count(distinct "commit") > 1""",
    "availability": f"""
        select day, node, desk, mailbox, count(*) filter (where since // {DAY} = day) as connections,
            sum(least(coalesce(until, since), (day + 1) * {DAY}) - greatest(since, day * {DAY})) as online
        from (select *, unnest(range(since // {DAY}, coalesce(until, since) // {DAY} + 1)) as day from links)
        group by all""",
    "deadletters": r"""
        select desk, regexp_replace(error, '\d+', '#', 'g') as error, count(*) as n, min(ts) as first_at,
            max(ts) as last_at from steps where event = 'died' group by all""",
    "outages": """
        select * from (
            select *, sum(failed) over w / nullif(sum(failed + finished) over w, 0) as baseline
            from (
                select "window", desk, mailbox, sum(failed) as failed, sum(finished) as finished from hours group by all
            )
            window w as (partition by desk, mailbox order by "window" range between 72 preceding and 1 preceding)
        ) where failed >= 5 and failed >= greatest(0.5, 2 * coalesce(baseline, 0)) * (failed + finished)""",
}
"""Each step by its name, in order."""
SHOWN = (
    "messages", "attempts", "books", "latency", "depth", "anomalies", "availability", "deadletters", "outages",
)  # fmt: skip


def run_duckdb(journal: str, lake: str, held: str | None) -> Iterator[dict[str, Any]]:
    """Build all tables twice."""
    import duckdb

    def build() -> float:
        shutil.rmtree(lake, ignore_errors=True)
        Path(lake).mkdir()
        checked = _timed(check, journal, lake)
        with duckdb.connect(f"{lake}/scratch.duckdb") as db:
            db.execute("set preserve_insertion_order = false")
            source = f"read_parquet('{journal}/node=*/*.parquet', hive_partitioning = false)"
            db.execute(f"create view events as select * from {source}")
            db.execute(f"copy events to '{lake}/events.parquet' (compression zstd)")
            for name, query in DUCKDB.items():
                db.execute(f"create table {name} as {query}")
                if name in SHOWN:
                    db.execute(f"copy {name} to '{lake}/{name}.parquet' (compression zstd)")
        Path(lake, "scratch.duckdb").unlink()
        return checked

    return _twice(build)


def run_polars(journal: str, lake: str, held: str | None) -> Iterator[dict[str, Any]]:
    """Build the tables twice."""
    import polars as pl

    key = KEY.split(", ")
    event = pl.col("event")
    hour = pl.col("posted").dt.truncate("1h").alias("window")
    ends = event.is_in(list(FINISHING))

    def first(name: str) -> pl.Expr:
        return pl.col("at").filter(event == name).min()

    def build() -> float:
        shutil.rmtree(lake, ignore_errors=True)
        Path(lake).mkdir()
        checked = _timed(check, journal, lake)
        events = pl.scan_parquet(f"{journal}/node=*/*.parquet", hive_partitioning=False)
        events.sink_parquet(f"{lake}/events.parquet")
        said = events.filter((pl.col("message_id") != "") & ~event.is_in(["duplicate", "refused"])).sort(*key, "offset")
        steps = said.with_columns(
            *(pl.col(name).shift(-1).over(key).alias(f"next_{name}") for name in ("event", "at", "offset", "reason")),
        ).collect()
        took = (pl.col("next_at") - pl.col("at")).dt.total_microseconds().clip(0)
        outcome = (
            pl.when(pl.col("last_event") == "died")
            .then(pl.lit("dead"))
            .when(pl.col("last_event").is_in([*FINISHING, "uncertain"]))
            .then(pl.col("last_event"))
            .otherwise(pl.lit("open"))
        )
        lives = (
            steps.lazy()
            .group_by(key)
            .agg(
                *(pl.col(name).first() for name in ("lane", "lane_seq", "kind", "size_bytes", "cause_id", "commit")),
                first("posted").alias("posted"),
                first("leased").alias("leased"),
                pl.col("at").filter(ends).first().alias("finished"),
                event.last().alias("last_event"),
                (event == "leased").sum().alias("attempts"),
                pl.col("offset").filter(event.is_in(["leased", "delivered"])).min().alias("taken"),
                pl.col("offset").min().alias("first_offset"),
                pl.col("offset").filter(ends).count().alias("ends"),
                took.filter(event.is_in(["leased", "received"])).sum().alias("wait_in_flight"),
                took.filter(event.is_in(["parked", "uncertain"])).sum().alias("wait_parked"),
                took.filter(event.is_in(["posted", "retried", "released", "recalled"])).sum().alias("wait_ready"),
            )
            .with_columns(outcome.alias("outcome"))
            .collect(engine="streaming")
        )
        lives.write_parquet(f"{lake}/messages.parquet")
        steps.filter(event == "leased").write_parquet(f"{lake}/attempts.parquet")
        lane = ["node", "desk", "mailbox", "lane"]
        ordered = lives.lazy().sort(*lane, "lane_seq").with_columns(
            pl.col("lane_seq").shift(1, fill_value=0).over(lane).alias("seq_before"),
            pl.col("taken").shift(1).cum_max().over(lane).alias("taken_before"),
        )  # fmt: skip
        ordered.filter(
            (pl.col("lane_seq") > pl.col("seq_before") + 1)
            | (pl.col("taken") < pl.col("taken_before"))
            | (pl.col("ends") > 1)
            | pl.col("posted").is_null()
        ).collect(engine="streaming").write_parquet(f"{lake}/anomalies.parquet")
        lives.group_by(hour, "desk", "kind", "outcome").len().write_parquet(f"{lake}/books.parquet")
        latency = (pl.col("finished") - pl.col("posted")).dt.total_microseconds()
        lives.filter(pl.col("outcome") == "delivered").group_by(hour, "desk", "kind").agg(
            *(latency.quantile(q).alias(f"p{q}") for q in (0.5, 0.95, 0.99))
        ).write_parquet(f"{lake}/latency.parquet")
        steps.lazy().group_by(pl.col("at").dt.truncate("1h"), "node", "desk", "mailbox").agg(
            (event == "posted").sum().alias("posted"),
            ends.sum().alias("finished"),
            event.is_in(["retried", "died", "uncertain", "parked"]).sum().alias("failed"),
        ).collect(engine="streaming").write_parquet(f"{lake}/depth.parquet")
        events.filter(event == "connected").group_by(pl.col("at").dt.truncate("1d"), "node", "desk", "mailbox").agg(
            pl.len()
        ).collect(engine="streaming").write_parquet(f"{lake}/availability.parquet")
        steps.lazy().filter(event == "died").group_by("desk", pl.col("error").str.replace_all(r"\d+", "#")).agg(
            pl.len(), pl.col("at").min().alias("first_at"), pl.col("at").max().alias("last_at")
        ).collect(engine="streaming").write_parquet(f"{lake}/deadletters.parquet")
        return checked

    return _twice(build)


def check(journal: str, lake: str) -> None:
    """Look at every segment and write down what is found."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from posthouse.pipeline import bronze, finding

    place = bronze.Journal(journal)
    listing = place.listing()
    with ThreadPoolExecutor(max_workers=2) as pool:
        looked = list(pool.map(functools.partial(bronze.examine, place), listing.files))
    columns = {name: [getattr(each, name) for each in looked] for name in ("node", "name", "first", "last", "chain")}
    pq.write_table(pa.table(columns), f"{lake}/segments.parquet")
    found = finding.findings(looked, listing.foreign)
    told = {name: [getattr(each, name) for each in found] for name in ("kind", "node", "at", "offsets", "detail")}
    pq.write_table(pa.table(told), f"{lake}/findings.parquet")


def _timed(work: Callable[..., None], *arguments: str) -> float:
    begun = time.monotonic()
    work(*arguments)
    return time.monotonic() - begun


def _twice(build: Callable[[], float]) -> Iterator[dict[str, Any]]:
    checked = build()
    yield {"built_at": time.monotonic()}
    yield {"of it checking": checked}
    begun = time.monotonic()
    build()
    yield {"warm": time.monotonic() - begun}
