"""Small hostile journals for hypothesis: lives that mostly keep the rules, and every so often do not.

Out: rows of the contract for one node at a time, and segments of them. What comes of them is for the oracle to say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from posthouse.journal import schema, segment
from posthouse.journal.schema import NAMES, RowValues
from posthouse.pipeline.generate import LATE

SECOND = 1_000_000
BEGIN = 1_772_323_200 * SECOND

_NEXT: dict[str, tuple[str, ...]] = {
    "": ("posted", "posted", "posted", "refused"),
    "posted": ("leased", "leased", "expired", "cancelled", "parked"),
    "leased": ("delivered", "delivered", "retried", "released", "recalled", "uncertain", "died", "parked", "received"),
    "received": ("delivered", "retried", "uncertain", "died"),
    "retried": ("leased", "leased", "expired", "died", "parked"),
    "released": ("leased", "leased", "expired"),
    "recalled": ("leased",),
    "parked": ("unparked", "cancelled"),
    "unparked": ("leased", "expired"),
    "uncertain": ("delivered", "cancelled", "redriven"),
    "redriven": ("leased", "expired"),
    "died": ("redriven",),
    "expired": ("redriven",),
    "cancelled": ("redriven",),
    "delivered": ("posted",),
    "refused": ("posted",),
}
"""What may come after what; a delivered message comes again as another of the same id."""
_ODD = ("delivered", "expired", "died", "cancelled", "parked")
"""What comes to a finished message that nothing should come to."""
_REASON = {
    "refused": "full", "retried": "failed", "released": "left", "recalled": "head_failed", "uncertain": "unknown",
    "died": "rejected", "expired": "ttl", "cancelled": "operator", "parked": "review", "paused": "operator",
    "disconnected": "cut",
}  # fmt: skip
_POLICIES = {
    "relay": {"name": "relay", "capacity": 3, "quiet_s": 0.0, "quiet_max_s": 0.0},
    "inbound": {"name": "inbound", "capacity": 3, "quiet_s": 2.0, "quiet_max_s": 9.5},
}
_OTHERS = (
    {**_POLICIES, "inbound": {**_POLICIES["inbound"], "quiet_s": 0.0}},
    {**_POLICIES, "relay": {**_POLICIES["relay"], "capacity": 1}},
    {**_POLICIES, "relay": {**_POLICIES["relay"], "capacity": None}},
    None,
)
"""What is said at later starts; the last says nothing."""
_DOOR = ("auth", "oversize", "rate_limited", "full")
"""Why something is refused that is no message yet."""
_FINISHED = ("delivered", "died", "expired", "cancelled")


@dataclass
class _Message:
    id: str
    desk: str
    mailbox: str
    lane: str
    sender: str
    kind: str
    seq: int = 0
    state: str = ""
    cause: str | None = None
    told: list[str] = field(default_factory=list)


@st.composite
def hostile_rows(draw: st.DrawFn, events_max: int = 60, *, back: bool = True) -> list[dict[str, Any]]:
    """Events of one node without node and offset, in order; ``back``: whether its clock goes back now and then."""
    messages = [
        _Message(
            id=f"m{n}",
            desk=draw(st.sampled_from(("relay", "inbound"))),
            mailbox=draw(st.sampled_from(("a", "b"))),
            lane=draw(st.sampled_from(("", "x"))),
            sender=draw(st.sampled_from(("s", "ß"))),
            kind=draw(st.sampled_from(("text", "offer"))),
            cause=draw(st.sampled_from((None, None, "m0", "else\u00adwhere"))),
        )
        for n in range(draw(st.integers(1, 7)))
    ]
    lanes: dict[tuple[str, ...], int] = {}
    at = BEGIN + draw(st.integers(0, 3_000)) * SECOND
    rows: list[dict[str, Any]] = [_row(at, "started", detail=json.dumps({"policies": _POLICIES}))]
    online: dict[tuple[str, str], bool] = {}
    paused: dict[tuple[str, str], bool] = {}
    for _ in range(draw(st.integers(0, events_max))):
        steps = (0, 1, SECOND, 7 * SECOND, 600 * SECOND, 4_000 * SECOND, -2 * SECOND)
        at += draw(st.sampled_from(steps if back else steps[:-1]))
        what = draw(st.integers(0, 19))
        if what == 0:
            place = draw(st.sampled_from(("relay", "inbound"))), draw(st.sampled_from(("a", "b")))
            if online.get(place):
                rows.append(_row(at, "disconnected", place, holder=f"c-{place[1]}"))
            else:
                rows.append(_row(at, "connected", place, holder=f"c-{place[1]}"))
            online[place] = not online.get(place)
        elif what == 1:
            place = draw(st.sampled_from(("relay", "inbound"))), draw(st.sampled_from(("a", "b")))
            rows.append(_row(at, "resumed" if paused.get(place) else "paused", place, holder="operator"))
            paused[place] = not paused.get(place)
        elif what == 2 and draw(st.booleans()):
            policies = draw(st.sampled_from((_POLICIES, *_OTHERS)))
            detail = None if policies is None else json.dumps({"policies": policies})
            rows.append(_row(at, "started", detail=detail))
            online.clear()
        elif what == 3 and draw(st.booleans()):
            desk, kind = draw(st.sampled_from(("relay", "inbound"))), draw(st.sampled_from(("", "text")))
            rows.append(_row(at, "refused", (desk, ""), kind=kind, reason=draw(st.sampled_from(_DOOR))))
        else:
            rows.append(_step(draw, draw(st.sampled_from(messages)), at, lanes))
    return _with_commits(draw, rows)


def _step(draw: st.DrawFn, message: _Message, at: int, lanes: dict[tuple[str, ...], int]) -> dict[str, Any]:
    """The message's next event: as it should be, or one that should not."""
    luck = draw(st.integers(0, 11))
    if message.state and luck == 0:
        event = "duplicate"
    elif message.state in _FINISHED and luck < 5:
        event = draw(st.sampled_from(_ODD))
    elif not message.state and luck == 1:
        # Never posted, and it happens all the same.
        event = "leased"
        message.seq = lanes.get(_lane(message), 0) + 1
        lanes[_lane(message)] = message.seq
    else:
        event = draw(st.sampled_from(_NEXT[message.state]))
    if event == "posted":
        message.seq = lanes.get(_lane(message), 0) + draw(st.sampled_from((1, 1, 1, 1, 3)))
        lanes[_lane(message)] = message.seq
    numberless = event in ("duplicate", "refused")
    row = _row(at, event, (message.desk, message.mailbox), holder="w" if event == "leased" else None)
    row |= {
        "lane": message.lane, "lane_seq": 0 if numberless else message.seq, "message_id": message.id,
        "kind": message.kind, "sender": message.sender, "attempt": 1, "size_bytes": 9, "cause_id": message.cause,
        "error": draw(st.sampled_from((None, 'no "room" at 10.0.0.1'))) if event in ("retried", "died") else None,
    }  # fmt: skip
    if event == "refused":
        row["reason"] = draw(st.sampled_from(("full", "full", "share", "ttl")))
    # Those of others say nothing.
    if event in ("posted", "redriven", "unparked") or draw(st.integers(0, 15)) == 0:
        row["expires_at"] = draw(st.sampled_from((None, at + 5 * SECOND, at + 700 * SECOND)))
    if event in ("posted", "retried", "released", "redriven"):
        row["due_at"] = at + draw(st.sampled_from((0, 0, 10 * SECOND)))
    settled_late = message.state in _FINISHED and event not in ("posted", "redriven")
    if not numberless and not settled_late:
        message.state = event
    elif event == "refused" and not message.state:
        message.state = "refused"
    return row


def _lane(message: _Message) -> tuple[str, ...]:
    return message.desk, message.mailbox, message.lane


def _row(at: int, event: str, place: tuple[str, str] = ("", ""), **columns: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(NAMES)
    row |= dict.fromkeys(("desk", "mailbox", "lane", "message_id", "kind", "sender"), "")
    row |= {"at": at, "event": event, "desk": place[0], "mailbox": place[1], "lane_seq": 0, "attempt": 0}
    return row | {"size_bytes": 0, "reason": _REASON.get(event)} | columns


def _with_commits(draw: st.DrawFn, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    commit = 1
    for offset, row in enumerate(rows, 1):
        if offset == 1 or draw(st.integers(0, 3)):
            commit = offset
        row["offset"], row["commit"] = offset, commit
    return rows


def write_journal(journal: Path, nodes: Sequence[list[dict[str, Any]]], cut: int = 25, lose: int | None = None) -> None:
    """Each list of rows as a node of its own, in segments; of nodes that ``lose`` divides, the second is held back."""
    for number, rows in enumerate(nodes):
        paths = write_node(journal, f"n{number:02d}", rows, cut)
        if lose and number % lose == 0 and len(paths) > 1:
            late = journal / LATE / paths[1].parent.name
            late.mkdir(parents=True)
            paths[1].rename(late / paths[1].name)


def write_node(journal: Path, node: str, rows: Sequence[dict[str, Any]], cut: int = 25) -> list[Path]:
    """The rows as segments of a node; its files."""
    folder, prev = journal / schema.folder_name(node), schema.GENESIS
    folder.mkdir(parents=True)
    paths = []
    for first in range(0, len(rows), cut):
        part: list[RowValues] = [
            tuple(node if name == "node" else row[name] for name in NAMES) for row in rows[first : first + cut]
        ]
        stamp = segment.Stamp(node, first + 1, first + len(part), prev, "")
        written = segment.write(folder, stamp, part)
        prev = written.chain
        paths.append(written.path)
    return paths


def write_restored(journal: Path, node: str, rows: Sequence[dict[str, Any]], at: Sequence[int], cut: int = 25) -> None:
    """The rows as a node and those that were restored from it, one after the other, behind so many of the rows each.

    Each but the last goes on for a while, and what it writes then is not the story any more.
    """
    origin, kept = "", 0
    for number, (first, last) in enumerate(pairwise([0, *at, len(rows)])):
        name = f"{node}-again-{number}" if number else node
        own = restored_rows(rows[first:last], origin, kept) if origin else list(rows[first:last])
        write_node(journal, name, numbered([*own, *rows[last : last + 9]]), cut)
        origin, kept = name, len(own)


def restored_rows(
    rows: Sequence[dict[str, Any]], origin: str, offset: int, at: int | None = None
) -> list[dict[str, Any]]:
    """The rows behind the start of a node that was restored, at that instant or when they begin."""
    detail = json.dumps({"policies": _POLICIES, "restored_from": {"node": origin, "offset": offset}})
    return [_row(rows[0]["at"] if at is None else at, "started", detail=detail), *rows]


def numbered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with offsets from 1 on; what was one commit still is."""
    found: list[dict[str, Any]] = []
    first: dict[object, int] = {}
    for offset, row in enumerate(rows, 1):
        commit = first.setdefault(row.get("commit") or f"of its own: {offset}", offset)
        found.append({**row, "offset": offset, "commit": commit})
    return found


def hostile_nodes(least: int = 8, most: int = 16) -> st.SearchStrategy[list[list[dict[str, Any]]]]:
    """Several hostile journals, one a node, so that one run on Spark judges them all."""
    return st.lists(hostile_rows(), min_size=least, max_size=most)


def hostile(count: int, *, back: bool = True) -> list[list[dict[str, Any]]]:
    """So many hostile journals for one run; what fails is named by its node, since shrinking would need many runs."""
    found: list[list[dict[str, Any]]] = []

    @settings(
        deadline=None, database=None, derandomize=True, phases=[Phase.generate], max_examples=count,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(hostile_rows(back=back))
    def collect(rows: list[dict[str, Any]]) -> None:
        found.append(rows)

    collect()
    return found
