"""The lake's own record: which segments are in it, the batch under way, and who is working on it.

In: a lake's folder or URL. Out: two documents, the state (what is committed) and the plan (the batch under way), each
written as a whole, and a lock. A batch is planned, then written table by table under its number, then committed by a
new state. Whoever finds a plan that is not committed does the same batch again: tables that have it skip it.
It never touches a table.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InvalidInput, SchemaMismatch
from . import bronze, offsets
from .bronze import Segment
from .finding import Finding, findings
from .lineage import Lineage, Restore
from .offsets import Ranges
from .record import FileRecord, Record, TableRecord
from .schema import SCHEMA_VERSION

APPEND, RECOMPUTE, REBUILD = "append", "recompute", "rebuild"
_UNOPENED = re.compile(r"[]\\[^|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""What the deltalake package cannot have in the path of a table."""


@dataclass(frozen=True)
class State:
    """What is committed."""

    batch: int = 0
    gold: int = 0
    """The batch from which the derived tables were last made."""
    segments: tuple[Segment, ...] = ()
    """What was taken in, in short (``taken``): the table of segments has their names."""
    rejected: tuple[Segment, ...] = ()
    foreign: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    """Mailboxes whose rows are kept out."""
    dirty: tuple[str, ...] = ()
    """Days and hours for which the derived tables are behind (``books/2026-03-01``, ``hours/2026-03-01T15``); `*` for
    all."""
    restores: tuple[Restore, ...] = ()
    """Which nodes go on from a snapshot of another."""
    schema_version: int = SCHEMA_VERSION

    @property
    def lineage(self) -> Lineage:
        """What the nodes are in the books."""
        return Lineage(self.restores)

    def known(self) -> dict[str, list[tuple[int, int]]]:
        """The offsets of each node that are in the lake."""
        nodes: dict[str, list[tuple[int, int]]] = {}
        for segment in self.segments:
            nodes.setdefault(segment.node, []).extend(segment.ranges)
        return {node: offsets.merged(ranges) for node, ranges in nodes.items()}

    def findings(self) -> list[Finding]:
        """What is wrong with the files."""
        return findings((*self.segments, *self.rejected), self.foreign, self.lineage)


@dataclass(frozen=True)
class Plan:
    """A batch: what the state will be, and the tables' versions that it starts from."""

    batch: int
    mode: str
    new: tuple[Segment, ...]
    after: State
    versions: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, Ranges] = field(default_factory=dict)
    """The offsets of each node that are in the lake before it."""
    nodes: tuple[str, ...] = ()
    """Whose rows are made anew, if any are, by their names in the books; all, if there are none."""


class Ledger:
    """The record of one lake."""

    def __init__(self, lake: str) -> None:
        if not lake.strip():
            raise InvalidInput("the lake's folder or URL is empty")
        self.place = lake.rstrip("/")
        self.system, self._root = bronze.open_place(lake)
        is_local = "://" not in lake or lake.startswith("file://")
        if is_local and (found := _UNOPENED.search(self._root)):
            raise InvalidInput(
                f"no lake can be at {self._root}: tables are not found where {found[0]!r} is in the path"
            )
        self._record: Record = FileRecord(self._root, self.place) if is_local else TableRecord(self.place)

    def table(self, name: str) -> str:
        """Where a table is."""
        return f"{self.place if '://' in self.place else self._root}/{name}"

    def folder(self, name: str) -> str:
        """Where it is in the lake's file system."""
        return f"{self._root}/{name}"

    def has(self, name: str) -> bool:
        """Whether a table is there: Delta makes the folder of its log long before the first entry."""
        selector = bronze.arrow_fs().FileSelector(f"{self.folder(name)}/_delta_log", allow_not_found=True)
        return any(each.extension in ("json", "parquet") for each in self.system.get_file_info(selector))

    def state(self, *, rebuilding: bool = False) -> State:
        """What is committed; an empty one in a new lake. Of an older version only what a rebuild needs, for one."""
        found = self._record.read("state")
        if found is None:
            return State()
        version = found.get("schema_version")
        if version == SCHEMA_VERSION:
            return _state(found)
        if rebuilding and isinstance(version, int) and version < SCHEMA_VERSION:
            return State(batch=found["batch"], forgotten=tuple(found["forgotten"]))
        raise self._mismatch(version)

    def _mismatch(self, version: object) -> SchemaMismatch:
        older = isinstance(version, int) and version < SCHEMA_VERSION
        hint = "rebuild it" if older else "use the newer Posthouse that wrote it"
        return SchemaMismatch(
            f"the lake {self.place} has schema version {version}, and this program {SCHEMA_VERSION}: {hint}"
        )

    def begun(self) -> int:
        """The number of the batch that was begun and not committed, whatever version it is of; 0 if there is none."""
        found = self._record.read("plan")
        return int(found["batch"]) if found else 0

    def forgetting(self) -> tuple[str, ...]:
        """Who is forgotten once that batch is committed, whatever version it is of."""
        found = self._record.read("plan")
        return tuple(found["after"].get("forgotten", ())) if found else ()

    def plan(self) -> Plan | None:
        """The batch that was begun and not committed."""
        found = self._record.read("plan")
        if found is None:
            return None
        if (version := found["after"].get("schema_version")) != SCHEMA_VERSION:
            raise self._mismatch(version)
        return Plan(
            found["batch"],
            found["mode"],
            tuple(map(Segment.from_plain, found["new"])),
            _state(found["after"]),
            found["versions"],
            {node: [(first, last) for first, last in ranges] for node, ranges in found["known"].items()},
            tuple(found["nodes"]),
        )

    def begin(self, plan: Plan) -> None:
        """Record a batch before anything of it is written."""
        document = {
            "batch": plan.batch,
            "mode": plan.mode,
            "new": [segment.plain() for segment in plan.new],
            "after": _plain(plan.after),
            "versions": dict(plan.versions),
            "known": {node: [list(pair) for pair in ranges] for node, ranges in plan.known.items()},
            "nodes": list(plan.nodes),
        }
        self._record.write({"plan": document})

    def commit(self, state: State) -> None:
        """Record that a batch is in all tables."""
        self._record.write({"state": _plain(state), "plan": None})

    @property
    def locks(self) -> bool:
        """Whether ``alone`` keeps others off for certain."""
        return self._record.locks

    def alone(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """Keep others off the lake; StoreHeld names who has it. See ``record`` for object stores."""
        return self._record.alone(doing)

    def tidy(self) -> None:
        """Remove what earlier versions of the record left behind."""
        self._record.tidy()


def _plain(state: State) -> dict[str, Any]:
    return {
        "schema_version": state.schema_version,
        "batch": state.batch,
        "gold": state.gold,
        "segments": [segment.plain() for segment in state.segments],
        "rejected": [segment.plain() for segment in state.rejected],
        "foreign": list(state.foreign),
        "forgotten": list(state.forgotten),
        "dirty": list(state.dirty),
        "restores": [list(restore) for restore in state.restores],
    }


def _state(found: Mapping[str, Any]) -> State:
    return replace(
        State(),
        batch=found["batch"],
        gold=found["gold"],
        segments=tuple(map(Segment.from_plain, found["segments"])),
        rejected=tuple(map(Segment.from_plain, found["rejected"])),
        foreign=tuple(found["foreign"]),
        forgotten=tuple(found["forgotten"]),
        dirty=tuple(found["dirty"]),
        restores=tuple(Restore(*each) for each in found["restores"]),
    )
