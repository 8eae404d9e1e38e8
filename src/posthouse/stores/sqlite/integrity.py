"""Looking for damage: SQLite's own check, and whether the tables still agree with each other.

In: a connection of its own, so that commits go on. Out: one sentence for each thing that is
wrong. It reads every row, so it is for an operator who asks, not for every start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import shelves
from .lookup import known_key, reads_rows

FINDINGS_MAX = 20


@reads_rows
def findings(db: Any) -> list[str]:
    """What is wrong, as far as the first few."""
    found: list[str] = []
    for finding in _findings(db):
        found.append(finding)
        if len(found) >= FINDINGS_MAX:
            break
    return found


def _findings(db: Any) -> Iterator[str]:
    db.execute("BEGIN")  # all that follows sees one state
    (watermark,) = db.execute("SELECT watermark FROM head").fetchall()[0]
    for (text,) in db.execute(f"PRAGMA integrity_check({FINDINGS_MAX})").fetchall():
        if text != "ok":
            yield str(text)
    for table in ("message", "memory"):
        yield from _unknown(db, table, watermark)
    for number, lane_id, seq in db.execute(
        "SELECT m.number, m.lane_id, m.seq FROM message m WHERE m.state = 0 AND m.number <= ? AND NOT EXISTS"
        " (SELECT 1 FROM queue q WHERE q.lane_id = m.lane_id AND q.seq = m.seq AND q.number = m.number)"
        " AND m.number NOT IN (SELECT number FROM gone)",
        (watermark,),
    ):
        yield f"message {number} is missing from the queue of lane {lane_id} at {seq}"
    for lane_id, said, counted in db.execute(
        "SELECT s.id, s.depth, coalesce(c.counted, 0) FROM lane_state s LEFT JOIN (SELECT lane_id, count(*) AS counted"
        " FROM message WHERE state = 0 AND number NOT IN (SELECT number FROM gone) GROUP BY lane_id) c"
        " ON c.lane_id = s.id WHERE s.depth <> coalesce(c.counted, 0)"
    ):
        yield f"lane {lane_id} says that it holds {said} messages and holds {counted}"
    for lane_id, depth in db.execute("SELECT id, depth FROM lane_state WHERE waiting <> (depth > 0)"):
        yield f"lane {lane_id} holds {depth} messages and says otherwise to who looks for lanes that hold any"
    for name, said, counted in db.execute(
        "SELECT d.name, d.depth, (SELECT coalesce(sum(s.depth), 0) FROM lane_state s JOIN mailbox b ON b.id ="
        " s.mailbox_id WHERE b.desk_id = d.id) AS counted FROM desk d WHERE d.depth <> counted"
    ):
        yield f"desk {name!r} says that it holds {said} messages and holds {counted}"
    for shelf, key in shelves.damaged(db):
        yield f"what shelf {shelf!r} keeps under {key!r} is not what was written"


def _unknown(db: Any, table: str, watermark: int) -> Iterator[str]:
    """Rows that would not be found by their id."""
    gone = "" if table == "memory" else " AND t.number NOT IN (SELECT number FROM gone)"
    for number, box_id, sender, id in db.execute(
        f"SELECT t.number, l.mailbox_id, t.sender, t.id FROM {table} t LEFT JOIN lane l ON l.id = t.lane_id"
        f" WHERE t.number <= ?{gone}",
        (watermark,),
    ):
        if box_id is None:
            yield f"{table} {number} is of a lane that does not exist"
            continue
        key = known_key(box_id, sender, id)
        if not db.execute("SELECT 1 FROM known WHERE key = ? AND number = ?", (key, number)).fetchall():
            yield f"{table} {number}, id {id!r}, is missing from the index of known ids"
