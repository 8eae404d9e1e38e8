"""Lives: the events of each message, folded in order of their offsets into one row.

In: events of messages, each once. Out: one row a message and generation, with the spans of its time.
It knows nothing of other messages: lanes, connections and pauses are joined later.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

KEY = ("node", "desk", "mailbox", "sender", "message_id")
"""What a message is known by; a second `posted` of the same is its next generation."""

FINISHING = {"delivered": "delivered", "died": "dead", "expired": "expired", "cancelled": "cancelled"}
WAITING = ("posted", "retried", "released", "recalled", "unparked", "redriven")
"""Events after which a message waits for a lease."""
LIFE_EVENTS = (*WAITING, "leased", "received", "uncertain", "parked", *FINISHING)
"""Events that change a message; `duplicate` and `refused` never do."""

TOLD = (*LIFE_EVENTS, "duplicate", "refused")
"""All that the journal tells of a message."""

READY, FLIGHT, ASIDE, DONE = 0, 1, 2, 3
"""What a message was doing in a span of its time."""

SPAN = (
    "struct<state:int,since:bigint,until:bigint,began:bigint,ended:bigint,first:bigint,last:bigint,due:bigint,"
    "attempt:int,holder:string,commit:bigint,life:int,received:bigint,how:string,reason:string,error:string>"
)
"""A stretch of a message's time; ``since`` and ``until`` never run back, ``began`` and ``ended`` are as recorded."""
DEATH = "struct<at:bigint,error:string,redriven:boolean>"

_STATE: dict[str, str] = {
    "state": "int",  # one of the four above; null before the first event
    "clock": "bigint",  # the latest instant so far: time does not run back inside a message
    "posted": "bigint",
    "posted_offset": "bigint",
    "first_leased": "bigint",
    "received": "bigint",
    "finished": "bigint",
    "finished_offset": "bigint",
    "outcome": "string",
    "last_event": "string",
    "reason": "string",
    "error": "string",
    "leases": "int",
    "given_back": "int",
    "lives": "int",
    "live": "boolean",
    "expires": "bigint",
    "taken_offset": "bigint",  # when it was first leased or delivered
    "freed": "bigint",  # when it first stopped holding its lane
    "exempt_offset": "bigint",  # from here on nobody overtakes it
    "twice": "array<bigint>",
    "settled": "array<bigint>",
    "late": "array<bigint>",
    "deaths": f"array<{DEATH}>",
    "spans": f"array<{SPAN}>",
    "open": SPAN,  # the span under way
}


def key_of(*columns: str) -> Column:
    """A number for a message's key: with the id it is unique, and cheaper to group by than five texts."""
    return F.xxhash64(*(columns or ("node", "desk", "mailbox", "sender")))


def lives(events: DataFrame) -> DataFrame:
    """One row a message and generation from all its events."""
    step = F.struct(
        "offset",
        F.unix_micros("at").alias("at"),
        "commit",
        "event",
        "attempt",
        "holder",
        "reason",
        "error",
        F.unix_micros("due_at").alias("due"),
        F.unix_micros("expires_at").alias("expires"),
        F.col("role").isNull().alias("new"),
    )
    is_post = F.col("event") == "posted"
    repeats = F.col("event").isin("duplicate", "refused")
    first = F.struct("offset", *KEY, "lane", "lane_seq", "kind", "size_bytes", "cause_id", "commit")
    grouped = (
        events.where(F.col("event").isin(*TOLD) & (F.col("message_id") != ""))
        .withColumn("key", key_of())
        .groupBy("key", "message_id")
        .agg(
            F.sort_array(F.collect_list(F.when(~repeats, step))).alias("steps"),
            F.collect_list(
                F.when(
                    repeats,
                    F.struct("offset", F.unix_micros("at").alias("at"), (F.col("event") == "duplicate").alias("same")),
                )
            ).alias("repeats"),
            F.min(F.when(~repeats, first)).alias("first"),
            F.min(F.when(is_post, first)).alias("post"),
            F.count(F.when(is_post, 1)).alias("posts"),
            F.coalesce(F.min("generation"), F.lit(1)).alias("generation"),
            F.max("memo_freed").alias("memo_freed"),
            F.max("memo_overtaken").alias("memo_overtaken"),
        )
        .where(F.size("steps") > 0)
    )
    memo = ("repeats", "generation", "memo_freed", "memo_overtaken")
    once = grouped.where("posts < 2").select("steps", F.coalesce("post", "first").alias("post"), *memo)
    again = _generations(grouped.where("posts > 1"), events)
    rows = once.unionByName(again)
    state = F.aggregate("steps", _nothing(), _next)
    return rows.select("post", "steps", *memo, state.alias("s")).select(
        *(F.col(f"post.{name}").alias(name) for name in (*KEY, "lane", "lane_seq", "kind", "size_bytes", "cause_id")),
        F.col("post.commit").alias("commit"),
        F.col("generation").cast("int").alias("generation"),
        "memo_freed",
        "memo_overtaken",
        F.size(F.filter("repeats", lambda r: r["same"])).alias("duplicates"),
        F.least(F.col("steps")[0]["offset"], F.array_min("repeats")["offset"]).alias("first_offset"),
        F.greatest(F.element_at("steps", -1)["offset"], F.array_max("repeats")["offset"]).alias("last_offset"),
        F.when(F.array_min("repeats")["offset"] < F.col("steps")[0]["offset"], F.array_min("repeats")["at"])
        .otherwise(F.col("steps")[0]["at"])
        .alias("first_at"),
        F.col("steps")[0]["offset"].alias("begun_offset"),
        F.exists("steps", lambda e: e["new"]).alias("fresh"),
        F.col("steps")[0]["new"].alias("begun"),
        *(F.col(f"s.{name}").alias(name) for name in _STATE if name not in ("clock", "state", "open")),
        F.col("s.state").alias("state"),
        F.col("s.open").alias("open"),
    )


def _generations(grouped: DataFrame, events: DataFrame) -> DataFrame:
    """Messages that were posted more than once: cut before each further post."""
    cuts = F.filter(F.transform("steps", lambda s, i: F.when(s["event"] == "posted", i)), lambda i: i.isNotNull())
    # What stands before the first post belongs to it.
    begins = F.concat(F.array(F.lit(0)), F.slice("cuts", 2, F.size("cuts")))
    pieces = F.transform(
        "begins",
        lambda b, i: F.struct(
            (i + F.col("generation")).cast("int").alias("generation"),
            F.slice("steps", b + 1, F.coalesce(F.get("begins", i + 1), F.size("steps")) - b).alias("steps"),
            F.filter(
                "repeats",
                lambda r: (
                    ((i == 0) | (r["offset"] > F.get("steps", b)["offset"]))
                    & (r["offset"] < F.coalesce(F.get("steps", F.get("begins", i + 1))["offset"], F.lit(2**62)))
                ),
            ).alias("repeats"),
        ),
    )
    posts = events.where((F.col("event") == "posted") & (F.col("message_id") != "")).select(
        key_of().alias("key"),
        "message_id",
        F.struct("offset", *KEY, "lane", "lane_seq", "kind", "size_bytes", "cause_id", "commit").alias("post"),
    )
    cut = (
        grouped.withColumn("cuts", cuts)
        .withColumn("begins", begins)
        .select("key", "message_id", "memo_freed", "memo_overtaken", F.explode(pieces).alias("piece"))
        .select("key", "message_id", "memo_freed", "memo_overtaken", "piece.generation", "piece.steps", "piece.repeats")
        .withColumn("posted_at_offset", F.filter("steps", lambda s: s["event"] == "posted")[0]["offset"])
    )
    return cut.join(
        posts.withColumn("posted_at_offset", F.col("post.offset")),
        on=["key", "message_id", "posted_at_offset"],
        how="inner",
    ).select("steps", "post", "repeats", "generation", "memo_freed", "memo_overtaken")


def _nothing() -> Column:
    return F.struct(
        *(
            F.array().cast(kind).alias(name) if name in ("deaths", "spans") else F.lit(None).cast(kind).alias(name)
            for name, kind in _STATE.items()
        )
    )


def _any(event: Column, names: tuple[str, ...]) -> Column:
    return event.isin(*names)


def _next(s: Column, e: Column) -> Column:
    """The state after one more event. A finished message changes only by `redriven`."""
    event, at = e["event"], F.greatest(s["clock"], e["at"])
    finishes = _any(event, tuple(FINISHING))
    done = s["state"] == DONE
    revived = event == "redriven"
    # What comes after the end changes nothing but the list of findings.
    counts = F.coalesce(~done, F.lit(True)) | revived
    waits = _any(event, WAITING)
    aside = _any(event, ("parked", "uncertain"))
    state = (
        F.when(waits, READY)
        .when(_any(event, ("leased", "received")), FLIGHT)
        .when(aside, ASIDE)
        .when(finishes, DONE)
        .cast("int")
    )
    # `received` goes on with the lease that it belongs to.
    goes_on = (event == "received") & (s["state"] == FLIGHT)
    begun = F.struct(
        state.alias("state"),
        at.alias("since"),
        F.lit(None).cast("bigint").alias("until"),
        e["at"].alias("began"),
        F.lit(None).cast("bigint").alias("ended"),
        e["offset"].alias("first"),
        F.lit(None).cast("bigint").alias("last"),
        F.when(waits, e["due"]).alias("due"),
        e["attempt"].alias("attempt"),
        e["holder"].alias("holder"),
        e["commit"].alias("commit"),
        (F.coalesce(s["lives"], F.lit(1)) + F.when(revived, 1).otherwise(0)).alias("life"),
        F.when(event == "received", e["at"]).alias("received"),
        F.lit(None).cast("string").alias("how"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(None).cast("string").alias("error"),
    )
    ended = F.struct(
        s["open"]["state"].alias("state"),
        s["open"]["since"].alias("since"),
        at.alias("until"),
        s["open"]["began"].alias("began"),
        e["at"].alias("ended"),
        s["open"]["first"].alias("first"),
        e["offset"].alias("last"),
        s["open"]["due"].alias("due"),
        s["open"]["attempt"].alias("attempt"),
        s["open"]["holder"].alias("holder"),
        s["open"]["commit"].alias("commit"),
        s["open"]["life"].alias("life"),
        s["open"]["received"].alias("received"),
        event.alias("how"),
        e["reason"].alias("reason"),
        e["error"].alias("error"),
    )
    posted = event == "posted"
    leases = event == "leased"
    delivers = event == "delivered"
    was_leased = s["state"] == FLIGHT
    finish = counts & finishes
    after = done & ~revived
    died = event == "died"
    expires = F.when(_any(event, ("posted", "redriven", "unparked")), F.coalesce(e["expires"], s["expires"])).otherwise(
        s["expires"]
    )
    new: dict[str, Column] = {
        "state": F.when(counts, state).otherwise(s["state"]),
        "clock": F.when(counts, at).otherwise(s["clock"]),
        "posted": F.coalesce(s["posted"], F.when(posted, e["at"])),
        "posted_offset": F.coalesce(s["posted_offset"], F.when(posted, e["offset"])),
        "first_leased": F.coalesce(s["first_leased"], F.when(leases, e["at"])),
        "received": F.coalesce(s["received"], F.when(event == "received", e["at"])),
        "finished": F.when(finish, e["at"]).when(revived, None).otherwise(s["finished"]),
        "finished_offset": F.when(finish, e["offset"]).when(revived, None).otherwise(s["finished_offset"]),
        "outcome": F.when(
            finish, reduce(lambda c, n: c.when(event == n, FINISHING[n]), FINISHING, F.when(F.lit(False), ""))
        )
        .when(revived, None)
        .otherwise(s["outcome"]),
        "last_event": event,
        "reason": F.when(finish | (counts & aside), e["reason"]).when(counts & waits, None).otherwise(s["reason"]),
        "error": F.when(counts, F.coalesce(e["error"], s["error"])).otherwise(s["error"]),
        "leases": F.coalesce(s["leases"], F.lit(0)) + F.when(counts & leases, 1).otherwise(0),
        "given_back": F.coalesce(s["given_back"], F.lit(0))
        + F.when(was_leased & _any(event, ("released", "recalled")), 1).otherwise(0),
        "lives": F.coalesce(s["lives"], F.lit(1)) + F.when(revived, 1).otherwise(0),
        "live": F.when(
            finish, delivers & was_leased & (s["open"]["commit"] == F.get(s["spans"], F.lit(0))["commit"])
        ).otherwise(s["live"]),
        "expires": expires,
        "taken_offset": F.coalesce(s["taken_offset"], F.when(leases | delivers, e["offset"])),
        "freed": F.coalesce(s["freed"], F.when(finishes | aside, at)),
        "exempt_offset": F.coalesce(s["exempt_offset"], F.when(aside | died | revived, e["offset"])),
        "twice": F.coalesce(
            s["twice"],
            F.when(after & delivers & (s["outcome"] == "delivered"), F.array(s["finished_offset"], e["offset"])),
        ),
        "settled": F.coalesce(
            s["settled"],
            F.when(after & ~(delivers & (s["outcome"] == "delivered")), F.array(s["finished_offset"], e["offset"])),
        ),
        "late": F.coalesce(
            s["late"],
            F.when(
                finish & delivers & was_leased & (s["open"]["began"] >= s["expires"]),
                F.array(s["open"]["first"], e["offset"]),
            ),
        ),
        "deaths": F.when(
            finish & died,
            F.concat(
                s["deaths"],
                F.array(F.struct(e["at"].alias("at"), e["error"].alias("error"), F.lit(False).alias("redriven"))),
            ),
        )
        .when(
            revived,
            F.transform(
                s["deaths"],
                lambda d: F.struct(d["at"].alias("at"), d["error"].alias("error"), F.lit(True).alias("redriven")),
            ),
        )
        .otherwise(s["deaths"]),
        "spans": F.when(
            counts & s["open"].isNotNull() & ~F.coalesce(goes_on, F.lit(False)), F.concat(s["spans"], F.array(ended))
        ).otherwise(s["spans"]),
        "open": F.when(
            counts & F.coalesce(goes_on, F.lit(False)),
            s["open"].withField("received", F.coalesce(s["open"]["received"], e["at"])),
        )
        .when(~counts, s["open"])
        .otherwise(begun),
    }
    return F.struct(*(new[name].cast(kind).alias(name) for name, kind in _STATE.items()))
