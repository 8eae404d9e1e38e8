"""The books in short: what a page of the console shows of a lake, as plain values.

In: a lake, a span of time, perhaps a desk. Out: outcomes that add up, by hour and by kind; findings; latency and what
messages waited for; policies that were replayed; and when the tables were written. Sums are made where the tables are
read, so that what comes here is small however large the lake is. It reads the lake and never writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import where
from .lake import Lake, Row, Selection
from .schema import ANOMALIES, WAITS

OUTCOMES = ("delivered", "open", "uncertain", "cancelled", "expired", "dead")
"""What a posted message may have come to; they add up to what was posted."""
BESIDE = ("refused", "duplicate", "remainder")
"""What was never posted."""
COUNTS = ("posted", *OUTCOMES, *BESIDE)
ENDS = ("delivered", "expired", "dead", "refused")
"""What a replay tells apart."""
REPLAYS_MAX = 100

Json = dict[str, Any]


def digest(lake: Lake, since: int | None = None, until: int | None = None, desk: str | None = None) -> Json:
    """What the books say of a span; BadFile where there are none."""
    chosen = Selection(since, until, {} if desk is None else {"desk": desk})
    have = lake.tables()
    kinds = lake.sums("books", ("desk", "kind"), COUNTS, chosen)
    totals = {name: sum(row[name] or 0 for row in kinds) for name in COUNTS}
    found = lake.totals("anomalies", ("kind",), of_findings(chosen)) if "anomalies" in have else []
    return {
        "written_at": lake.written_at("books"),
        "totals": totals,
        "closes": totals["posted"] == sum(totals[name] for name in OUTCOMES) and not totals["remainder"],
        "kinds": [dict(row) for row in kinds],
        "hours": lake.sums("books", ("window",), COUNTS, chosen),
        "findings": [
            {"kind": row["kind"], "count": row["n"], "meaning": ANOMALIES.get(row["kind"], "")} for row in found
        ],
        "latency": _latency(lake, have, chosen),
        "waits": _waits(lake, have, chosen),
        "replays": _replays(lake, have, chosen),
    }


def findings(
    lake: Lake, kind: str | None, desk: str | None, limit: int, since: int | None = None, until: int | None = None
) -> list[Row]:
    """The first findings of a span, with the ids and offsets that prove them; BadFile where there are no books."""
    if not lake.has("anomalies") and lake.tables():
        return []
    equal = {name: value for name, value in (("kind", kind), ("desk", desk)) if value is not None}
    columns = ("kind", "node", "desk", "mailbox", "sender", "message_id", "at", "offsets", "detail")
    chosen = Selection(since, until, equal, columns=columns, limit=limit)
    return list(lake.rows("anomalies", of_findings(chosen)))


def of_findings(chosen: Selection) -> Selection:
    """The findings that go with what is chosen: those about files are of no desk, and concern every one."""
    equal = dict(chosen.equal)
    desk = equal.pop("desk", None)
    if desk is None:
        return chosen
    return replace(chosen, equal=equal, where=f"desk in ({where.literal(desk)}, '')")


def verdict(posted: int, closes: bool, found: int) -> tuple[str, str]:
    """How good it is what the books come to (nothing where there is nothing to judge), and what to say of it."""
    listed = f"There are {found:,} findings; they are listed below."
    if not closes:
        return "bad", "The books do not close: see the remainder and the findings."
    if found:
        return "warn", f"The books close. {listed}" if posted else f"No message was posted in this span. {listed}"
    if not posted:
        return "", "No message was posted in this span, and nothing was found."
    return "good", "The books close: every message that was posted has one outcome. Nothing was found."


def _latency(lake: Lake, have: Sequence[str], chosen: Selection) -> list[Row]:
    """Percentiles by hour, desk, kind, and whether it was live; in microseconds."""
    if "latency" not in have:
        return []
    columns = ("window", "desk", "kind", "live", "count", "p50", "p95", "p99", "max")
    rows = lake.rows("latency", Selection(chosen.since, chosen.until, chosen.equal, columns=columns))
    return [row for row in rows if row["count"]]


def _waits(lake: Lake, have: Sequence[str], chosen: Selection) -> list[Json]:
    """What messages waited for, by desk, in microseconds; desks where nothing waited are left out."""
    if "messages" not in have:
        return []
    names = [f"wait_{name}" for name in WAITS]
    rows = lake.sums("messages", ("desk",), names, chosen)
    return [
        {"desk": row["desk"], "waits": {name: row[f"wait_{name}"] or 0 for name in WAITS}}
        for row in rows
        if any(map(row.get, names))
    ]


def _replays(lake: Lake, have: Sequence[str], chosen: Selection) -> list[Json]:
    """Policies that were tried on recorded posts: they are of the whole lake, whatever the span."""
    if "replays" not in have:
        return []
    rows = lake.rows("replays", Selection(equal=chosen.equal, limit=REPLAYS_MAX))
    return [{**row, "other": other(row)} for row in rows]


def other(row: Mapping[str, Any]) -> int:
    """Posts of a replay that came to none of its ends: unfinished, or cancelled."""
    return max(int(row["posted"] or 0) - sum(int(row[end] or 0) for end in ENDS), 0)
