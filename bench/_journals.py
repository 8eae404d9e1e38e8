"""Journals for the benchmark of the books: made up from one seed, or taken as they were made before.

In: a folder and a size. Out: a journal, and apart from it the segments that come later: its last ones, and one of
events about messages that were finished long before.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

SEED, LATE_EVENTS, INCREMENTS, NODE_EVENTS = 1, 200, 6, 10_000_000
"""Of so many increments that are held back the last one is measured, and holds the events that come so late."""


class Journals(NamedTuple):
    """A journal and what is held back of it, each in a folder."""

    journal: Path
    held: Path


def journals(console: Console, folder: Path, millions: float, increment: int) -> Journals:
    """Make them up in a folder, or take them as they are there."""
    found = Journals(folder / f"journal-{millions:g}", folder / f"held-{millions:g}")
    note = folder / f"made-{millions:g}.json"
    if note.exists():
        said = json.loads(note.read_text())
        if said["increment"] != increment:
            raise SystemExit(f"{note} was made for increments of {said['increment']}: remove it and its folders")
    else:
        said = _make(found, millions, increment)
        note.write_text(json.dumps(said))
    console.print(
        f"{millions:g} M: {said['events']} events, {said['bytes'] / 1e6:.0f} MB, made up in {said['took_s']:.0f} s;"
        f" {said['held']} of them come later",
        highlight=False,
    )
    return found


def _make(found: Journals, millions: float, increment: int) -> dict[str, Any]:
    from posthouse.pipeline.generate import generate

    journal, held = found
    begun = time.perf_counter()
    events = int(millions * 1e6)
    # A node is made up in memory as a whole.
    nodes = max(round(events / NODE_EVENTS), 1)
    size = min(max(events // 8, 1_000), increment, 250_000)
    sheet = generate(journal, events=events, seed=SEED, nodes=nodes, segment_events=size)
    moved = 0
    # The end of the last node: so nothing in it is late.
    for path in sorted(journal.glob("node=*/*.parquet"), reverse=True):
        if moved >= min(INCREMENTS * increment, events // 4):
            break
        first, last = map(int, path.stem.split("-"))
        target = held / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        moved += last - first + 1
    moved += sum(scatter(folder, held / folder.name, LATE_EVENTS // nodes) for folder in journal.glob("node=*"))
    return {
        "events": sheet["events"],
        "held": moved,
        "increment": increment,
        "bytes": sum(path.stat().st_size for path in journal.rglob("*.parquet")),
        "took_s": time.perf_counter() - begun,
    }


def scatter(journal: Path, held: Path, count: int) -> int:
    """One more segment of a node: events about messages that were posted and finished all over its journal."""
    import pyarrow.parquet as pq

    from posthouse.journal import schema, segment

    files = sorted(journal.glob("*.parquet"))
    last = max([*files, *held.glob("*.parquet")], key=lambda path: path.name)
    facts = pq.read_schema(last).metadata
    node, end = facts[schema.KEY_NODE.encode()].decode(), int(facts[schema.KEY_LAST.encode()])
    every, each = max(len(files) // count, 1), max(count // len(files), 1)
    posts: list[dict[str, Any]] = []
    for path in files[::every]:
        posts += pq.read_table(path, filters=[("event", "=", "posted")]).slice(0, each).to_pylist()
    latest = pq.read_table(last, columns=["at"]).column("at")[-1].as_py()
    rows = []
    for number, row in enumerate(posts[:count], 1):
        row |= {"offset": end + number, "commit": end + number, "at": latest, "due_at": None, "expires_at": None}
        row |= {"event": "duplicate", "lane_seq": 0} if number % 2 else {"event": "delivered"}
        values = (row[column.name] for column in schema.COLUMNS)
        rows.append(tuple(int(v.timestamp() * 1e6) if hasattr(v, "timestamp") else v for v in values))
    prev = facts[schema.KEY_CHAIN.encode()].decode()
    held.mkdir(parents=True, exist_ok=True)
    segment.write(held, segment.Stamp(node, end + 1, end + len(rows), prev, ""), rows)
    return len(rows)


def increments(held: Path) -> list[list[Path]]:
    """What comes later, in turns: one segment each, and with the last one all that is left."""
    nodes = sorted((sorted(node.glob("*.parquet")) for node in held.glob("node=*")), key=len, reverse=True)
    paths = [path for node in nodes for path in node]
    turns = [[path] for path in paths[: INCREMENTS - 1]]
    return [*turns, paths[len(turns) :]]
